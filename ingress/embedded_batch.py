"""`headrace batch run`: a file of requests answered by a model of this process, without a service.

It is the batch engine of `headrace up` without HTTP. What it has done lies in a directory, so that
a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
import msgspec
import uvloop
from rich.console import Console

from ingress.auth import ANONYMOUS
from ingress.batch.lifecycle import ENDED
from ingress.client.commands import (
    EXIT_STATUS,
    INTERRUPTED,
    check_outputs,
    endpoint_option,
    errors_option,
    input_argument,
    named_endpoint,
    output_option,
    require_sound,
)
from ingress.client.display import BatchDisplay, print_outcome, say
from ingress.client.input import MESSAGES, content, message_requests, size_of
from ingress.client.output import copy, errors_beside, replacing
from ingress.client.view import BatchView
from ingress.embedded import trial_model, working
from ingress.options import DataDirectory, data_directory, data_option
from ingress.settings import IngressSettings, data_dir
from ingress.stores.base import BatchStore
from schemas import telemetry
from schemas.batch import UNFINISHED, Batch, Counts, Shape, StoredFile
from schemas.options import option
from workers.options import engine_options
from workers.settings import WorkerSettings
from workers.trial_model import TRIAL_MODEL_ID

_ACCOUNT: Final = ANONYMOUS.account
_RUN: Final = "headrace_run"
"""Metadata by which a run knows its batch again."""

_FOREVER_S: Final = 10 * 365 * 86_400.0
_KEPT_S: Final = 30 * 86_400
_MOST_UNFINISHED: Final = 1000
_LOOK_S: Final = 0.25


@click.command("run", epilog=EXIT_STATUS)
@input_argument
@endpoint_option
@output_option
@errors_option
@option(
    "--model",
    env="MODEL",
    help="Directory or hub id of the model. Default: a small real model for trying out.",
)
@data_option("a directory of this run alone, which is deleted at its end")
@engine_options
@option(
    "--log-level",
    env="LOG_LEVEL",
    default="error",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least level of log lines, on stderr.",
)
def run_batch(
    file: Path,
    endpoint: str | None,
    output: Path | None,
    errors: Path | None,
    model: str | None,
    data: Path | None,
    public_id: str | None,
    reasoning_parser: str | None,
    log_level: str,
    **values: Any,
) -> None:
    """Answer the requests of FILE right here, with a model of this process.

    Results go to x.results.jsonl beside x.jsonl unless --output says otherwise. Interrupted, the
    same command goes on where it was.
    """
    console = Console(stderr=True)
    path = named_endpoint(file, endpoint)
    output = output or file.with_name(f"{file.stem}.results{file.suffix}")
    if path == MESSAGES and errors is not None:
        raise click.UsageError("Message batches have all lines in one file; leave --errors out.")
    check_outputs(output, errors)
    if values["engine"] == "upstream" and not (values["upstream_url"] and model):
        raise click.UsageError("--engine upstream needs --upstream-url and --model")
    found = require_sound(console, file, path)
    name = _name(model, public_id, found.model, scripted=values["engine"] == "scripted")
    if model is None:
        model = name if values["engine"] == "scripted" else trial_model(console)
    worker = WorkerSettings(
        model=model, served_id=name, reasoning_format=reasoning_parser, **values
    )
    run_id = _run_id(file, path, worker)
    stdout = _stdout_for_results_alone()
    telemetry.configure_logging(log_level)
    place = data or data_dir() / "runs" / run_id
    with data_directory(place) as kept:
        # A directory of this run alone is still there only if the results were not written.
        run = LocalRun(file, path, run_id, worker, kept, console, takes_ended=data is None)
        try:
            ended = uvloop.run(_interruptible(run, output, errors, stdout))
        except (KeyboardInterrupt, asyncio.CancelledError):
            say(console, "Interrupted. The same command goes on where this has come to.")
            raise SystemExit(INTERRUPTED) from None
        if data is None:
            shutil.rmtree(place, ignore_errors=True)
    print_outcome(console, ended)
    raise SystemExit(ended.exit_status)


def _stdout_for_results_alone() -> BinaryIO:
    """What was stdout; all that engines and logs write there goes to stderr from now on."""
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stdout


def _name(model: str | None, public_id: str | None, asked: str | None, *, scripted: bool) -> str:
    """The name to serve the model under: the one that the requests ask for.

    Raises:
        click.UsageError: They ask for something else than what was named.
    """
    if asked is None:
        raise click.UsageError("The requests ask for several models, and one can be run.")
    if public_id is not None or (model is None and not scripted):
        named = public_id or TRIAL_MODEL_ID
        if asked.lower() != named.lower():
            raise click.UsageError(
                f"The requests ask for {asked}, and this runs {named}. Name a model with --model."
            )
        return named
    return asked


def _run_id(file: Path, endpoint: str, worker: WorkerSettings) -> str:
    """The same for what may go on where an earlier run was, and for nothing else."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256")
    what = (endpoint, worker.engine, worker.model, worker.served_id, worker.engine_args)
    digest.update(repr(what).encode())
    return digest.hexdigest()[:24]


async def _interruptible(
    run: LocalRun, output: Path, errors: Path | None, stdout: BinaryIO
) -> BatchView:
    """A run that SIGTERM ends as Ctrl-C does."""
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None

    def listen() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, running.cancel)

    # Once the engine is there: it sets handlers of its own while it starts.
    return await run.run(output, errors, stdout, on_loaded=listen)


class LocalRun:
    """One run of a file.

    Args:
        endpoint: Path of what its requests are for.
        run_id: By which the run knows its batch again.
        takes_ended: Whether a batch that has ended may be such a one too.
    """

    def __init__(
        self,
        file: Path,
        endpoint: str,
        run_id: str,
        worker: WorkerSettings,
        data: DataDirectory,
        console: Console,
        *,
        takes_ended: bool,
    ) -> None:
        self._file = file
        self._endpoint = endpoint
        self._run_id = run_id
        self._worker = worker
        self._data = data
        self._console = console
        self._takes_ended = takes_ended

    async def run(
        self,
        output: Path,
        errors: Path | None,
        stdout: BinaryIO,
        *,
        on_loaded: Callable[[], None] = lambda: None,
    ) -> BatchView:
        """Load the model, answer what is not answered yet, write the results."""
        settings = IngressSettings(model=self._worker.served_id)
        async with working(settings, self._worker, self._data, self._console) as parts:
            on_loaded()
            services, consuming = parts
            assert services.store is not None
            batch = await self._earlier(services.store) or await self._add(services.store)
            batch = await self._ended(services.store, batch, consuming)
            await self._write(services.store, batch, output, errors, stdout)
        return _view(batch)

    async def _earlier(self, store: BatchStore) -> Batch | None:
        """The batch of a run that was interrupted."""
        shape: Shape = "messages" if self._endpoint == MESSAGES else "openai"
        after = None
        while True:
            page = await store.batches(_ACCOUNT, shape, limit=100, after=after)
            if page is None:
                return None
            for batch in page.items:
                if (batch.metadata or {}).get(_RUN) == self._run_id and (
                    self._takes_ended or batch.status in UNFINISHED
                ):
                    return batch
            if not page.more:
                return None
            after = page.items[-1].batch_id

    async def _add(self, store: BatchStore) -> Batch:
        """Store the file and make a batch of it."""
        now = time.time()
        batch = Batch(
            batch_id=f"batch_{secrets.token_hex(12)}",
            account=_ACCOUNT,
            shape="openai",
            endpoint=self._endpoint,
            input_blob="",
            metadata={_RUN: self._run_id},
            created_at=now,
            expires_at=now + _FOREVER_S,
        )
        if self._endpoint == MESSAGES:
            batch_id = f"msg{batch.batch_id}"
            batch = msgspec.structs.replace(
                batch, batch_id=batch_id, shape="messages", input_blob=f"batches/{batch_id}"
            )
            lines = _Lines(self._file)
            await self._data.blobs.write(batch.input_blob, lines.read())
            batch = msgspec.structs.replace(batch, counts=Counts(total=lines.total))
        else:
            file_id = f"file-{secrets.token_hex(12)}"
            file = StoredFile(
                file_id=file_id,
                account=_ACCOUNT,
                filename=self._file.name,
                purpose="batch",
                size=size_of(self._file),
                created_at=int(now),
                expires_at=int(now) + _KEPT_S,
                blob=f"files/{file_id}",
            )
            await self._data.blobs.write(file.blob, content(self._file))
            await store.add_file(file)
            batch = msgspec.structs.replace(batch, input_file_id=file_id, input_blob=file.blob)
        return await store.add_batch(batch, max_unfinished=_MOST_UNFINISHED)

    async def _ended(self, store: BatchStore, batch: Batch, consuming: asyncio.Task[None]) -> Batch:
        with BatchDisplay(self._console) as display:
            while True:
                display.show(_view(batch))
                if batch.status in ENDED:
                    return batch
                if consuming.done():
                    say(self._console, "The engine was lost. The same command goes on from here.")
                    raise asyncio.CancelledError
                await asyncio.wait({consuming}, timeout=_LOOK_S)
                batch = await store.batch(_ACCOUNT, batch.batch_id) or batch

    async def _write(
        self,
        store: BatchStore,
        batch: Batch,
        output: Path,
        errors: Path | None,
        stdout: BinaryIO,
    ) -> None:
        if batch.shape == "messages":
            await _save(self._read(batch.results_blob), output, stdout)
            return
        await _save(self._read(await _blob(store, batch.output_file_id)), output, stdout)
        beside = errors or errors_beside(output)
        if batch.error_file_id or errors or beside.exists():
            await _save(self._read(await _blob(store, batch.error_file_id)), beside, stdout)

    async def _read(self, blob: str | None) -> AsyncIterator[bytes]:
        if blob is not None:
            async for piece in self._data.blobs.read(blob):
                yield piece


class _Lines:
    """The requests of a message batch as they are stored.

    Attributes:
        total: How many there have been.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.total = 0

    async def read(self) -> AsyncIterator[bytes]:
        async for request in message_requests(self._file):
            self.total += 1
            yield request + b"\n"


async def _blob(store: BatchStore, file_id: str | None) -> str | None:
    """Where the content of a file lies; None without a file."""
    if file_id is None:
        return None
    file = await store.file(_ACCOUNT, file_id, time.time())
    return None if file is None else file.blob


async def _save(pieces: AsyncIterator[bytes], path: Path, stdout: BinaryIO) -> None:
    with replacing(path, stdout) as file:
        await copy(pieces, file, lambda _: None)


def _view(batch: Batch) -> BatchView:
    counts, usage = batch.counts, batch.usage
    return BatchView(
        batch_id=batch.batch_id,
        # Counts grow while it runs, for either shape.
        shape="openai",
        endpoint=batch.endpoint,
        status=batch.status,
        ended=batch.status in ENDED,
        created_at=batch.created_at,
        total=counts.total,
        succeeded=counts.succeeded,
        errored=counts.errored,
        unexecuted=counts.cancelled + counts.expired,
        tokens=(usage.input_tokens, usage.output_tokens),
        errors=batch.errors,
    )
