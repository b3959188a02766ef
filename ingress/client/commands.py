"""`headrace batch …`: submit a file to a service, watch it, and get the results.

stdout has what scripts read: an id, JSON, results. Everything for eyes goes to stderr.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click
import orjson
from rich.console import Console

from ingress.batch.input_check import Finding
from ingress.client.connection import (
    Body,
    ClientError,
    Connection,
    Refused,
    Transient,
    connected,
)
from ingress.client.display import (
    BatchDisplay,
    print_errors,
    print_list,
    print_outcome,
    say,
    transfer,
)
from ingress.client.input import MESSAGES, check_input, endpoint_of, message_batch_body, size_of
from ingress.client.output import STDOUT, copy, errors_beside, replacing
from ingress.client.view import BatchView, view
from ingress.lazy_group import LazyGroup
from schemas.options import option, stacked

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

UNUSABLE: Final = 1
"""Exit status: it could not be asked for, or nobody could be asked."""

INTERRUPTED: Final = 130
_FIRST_LOOK_S: Final = 0.2
_LAST_LOOK_S: Final = 5.0
_PATIENCE_S: Final = 600.0
"""How long a service that is watched may be away."""

_ENDPOINTS: Final = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "completions": "/v1/completions",
    "messages": MESSAGES,
}

EXIT_STATUS: Final = """\b
Exit status of what waits for the end:
  0  every request succeeded
  1  the command could not be carried out
  2  some requests failed
  3  the batch failed, expired or was cancelled
  130  interrupted; the batch goes on"""


class _Misuse(click.UsageError):
    """Ends with 1 here: 2 says something else."""

    exit_code = UNUSABLE


class _BatchGroup(LazyGroup):
    """The commands below, and those that need more of the program than its client side."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _misuse():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _misuse():
            return super().invoke(ctx)


@contextmanager
def _misuse() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        raise _Misuse(error.format_message(), error.ctx) from None


@click.command(
    "batch",
    cls=_BatchGroup,
    entry_points="headrace.batch_commands",
    order=("submit", "status", "results", "cancel", "list", "run", "files"),
    epilog=EXIT_STATUS,
)
def batch() -> None:
    """Answer a file of requests: submit it to a service, or run it right here."""


class _Target:
    """A service, and how to speak of it."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self.key = key.split()[0] if key and key.split() else None
        """The variable may have several, for a service; any of them will do."""

    def run(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Do something over a connection."""

        async def connect() -> T:
            async with connected(self.url, self.key) as connection:
                return await work(connection)

        try:
            return asyncio.run(connect())
        except ClientError as error:
            if isinstance(error, Refused) and error.status == 401 and self.key is None:
                raise click.ClickException(f"{error} Give it by --api-key.") from None
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"{error.filename}: {error.strerror}") from None


def _target_options(command: F) -> F:
    return stacked(
        option(
            "--url", env="URL", default="http://127.0.0.1:8000", help="Where the service listens."
        ),
        option("--api-key", "key", env="API_KEY", help="Key for it. Better given by the variable."),
        click.option("--json", "as_json", is_flag=True, help="Objects of the API on stdout."),
    )(command)


watch_option = click.option("--watch", is_flag=True, help="Wait for the end.")
output_option = click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the results go; - is stdout.",
)
errors_option = click.option(
    "--errors",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the lines of failed requests go. Default: x.errors.jsonl beside x.jsonl. Message "
    "batches have all lines in one file.",
)
input_argument = click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
)
endpoint_option = click.option(
    "--endpoint",
    metavar="NAME",
    help="chat, responses, completions, messages, or a path such as /v1/responses. Default: what "
    "the first line of the file says.",
)


# --- Commands -------------------------------------------------------------------------------------


@batch.command(epilog=EXIT_STATUS)
@input_argument
@endpoint_option
@click.option(
    "--metadata", multiple=True, metavar="KEY=VALUE", help="Kept with the batch. May be repeated."
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Look for mistakes before the upload.",
)
@watch_option
@output_option
@errors_option
@_target_options
def submit(
    file: Path,
    endpoint: str | None,
    metadata: tuple[str, ...],
    check: bool,
    watch: bool,
    output: Path | None,
    errors: Path | None,
    url: str,
    key: str | None,
    as_json: bool,
) -> None:
    """Make a batch of FILE, which has one request a line.

    With --output it waits for the end and then fetches the results. Otherwise stdout has the id.
    """
    console = _console()
    path = named_endpoint(file, endpoint)
    pairs = _metadata(metadata)
    if path == MESSAGES and pairs:
        raise click.UsageError("Message batches have no metadata.")
    check_outputs(output, errors)
    if check:
        require_sound(console, file, path)
    target = _Target(url, key)
    try:
        body = target.run(lambda service: _submit(service, console, file, path, pairs))
    except KeyboardInterrupt:
        say(console, "Interrupted; nothing was submitted.")
        raise SystemExit(INTERRUPTED) from None
    batch_id = _view(body).batch_id
    if watch or output is not None:
        say(console, f"{batch_id} submitted")
        _follow(target, console, batch_id, output, errors, as_json=as_json)
    elif as_json:
        _print_json(body)
    else:
        click.echo(batch_id)


@batch.command(epilog=EXIT_STATUS)
@click.argument("batch_id", metavar="ID")
@watch_option
@_target_options
def status(batch_id: str, watch: bool, url: str, key: str | None, as_json: bool) -> None:
    """Say how far a batch has come; with --watch until its end."""
    target = _Target(url, key)
    if watch:
        _follow(target, _console(), batch_id, None, None, as_json=as_json)
        return
    body = target.run(lambda service: service.batch(batch_id))
    if as_json:
        _print_json(body)
    else:
        print_outcome(Console(), _view(body))


@batch.command(epilog=EXIT_STATUS)
@click.argument("batch_id", metavar="ID")
@output_option
@errors_option
@_target_options
def results(
    batch_id: str,
    output: Path | None,
    errors: Path | None,
    url: str,
    key: str | None,
    as_json: bool,
) -> None:
    """Fetch what became of the requests of a batch that has ended."""
    if output is None:
        raise click.UsageError("Say where the results go, with --output; - is stdout.")
    check_outputs(output, errors)
    console = _console()

    async def fetch(service: Connection) -> Body:
        body = await service.batch(batch_id)
        if not _view(body).ended:
            raise ClientError(f"{batch_id} has not ended yet: it is {_view(body).status}.")
        await _fetch(service, console, _view(body), output, errors)
        return body

    body = _Target(url, key).run(fetch)
    _end(console, body, as_json=as_json and output != STDOUT)


@batch.command()
@click.argument("batch_id", metavar="ID")
@_target_options
def cancel(batch_id: str, url: str, key: str | None, as_json: bool) -> None:
    """Give up the requests of a batch that have not been answered yet."""
    body = _Target(url, key).run(lambda service: service.cancel(batch_id))
    if as_json:
        _print_json(body)
    else:
        say(_console(), f"{batch_id} {_view(body).status}")


@batch.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Of each kind."
)
@_target_options
def list_(limit: int, url: str, key: str | None, as_json: bool) -> None:
    """List batches, the newest first."""

    async def fetch(service: Connection) -> list[Body]:
        found = []
        for path in ("/v1/batches", "/v1/messages/batches"):
            page = await service.batches(path, limit)
            found += page.items
        return found

    bodies = _Target(url, key).run(fetch)
    bodies.sort(key=lambda body: _view(body).created_at, reverse=True)
    if as_json:
        for body in bodies:
            _print_json(body)
    else:
        print_list(Console(), [_view(body) for body in bodies])


@batch.group()
def files() -> None:
    """The files of batches: what was uploaded, and results."""


@files.command("list")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most."
)
@_target_options
def list_files(limit: int, url: str, key: str | None, as_json: bool) -> None:
    """List files, the newest first."""
    page = _Target(url, key).run(lambda service: service.files(limit))
    for file in page.items:
        if as_json:
            _print_json(file)
        else:
            click.echo(f"{file['id']}  {file['purpose']}  {file['bytes']}  {file['filename']}")


@files.command("delete")
@click.argument("file_ids", metavar="ID…", nargs=-1, required=True)
@_target_options
def delete_files(file_ids: tuple[str, ...], url: str, key: str | None, as_json: bool) -> None:
    """Delete files."""

    async def delete(service: Connection) -> None:
        for file_id in file_ids:
            body = await service.delete_file(file_id)
            if as_json:
                _print_json(body)
            else:
                say(_console(), f"{file_id} deleted")

    _Target(url, key).run(delete)


# --- Steps ----------------------------------------------------------------------------------------


def named_endpoint(file: Path, endpoint: str | None) -> str:
    """The path of the endpoint that was named, or that the file names.

    Raises:
        click.UsageError: Neither says.
    """
    try:
        endpoint = endpoint or endpoint_of(file)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    if endpoint is None:
        raise click.UsageError("Say what the requests are for, with --endpoint.")
    path = _ENDPOINTS.get(endpoint, endpoint)
    if not path.startswith("/v1/"):
        raise click.UsageError(
            f"An endpoint is one of {', '.join(_ENDPOINTS)}, or a path that begins with /v1/."
        )
    return path


def require_sound(console: Console, file: Path, endpoint: str) -> Finding:
    """Look for the mistakes that can be seen from here.

    Raises:
        click.ClickException: There are some; they have been told.
    """
    with console.status(f"Checking {file}"):
        found = check_input(file, endpoint)
    if found.errors:
        print_errors(console, found.errors, file)
        raise click.ClickException("The file cannot be a batch.")
    return found


async def _submit(
    service: Connection, console: Console, file: Path, endpoint: str, metadata: Mapping[str, str]
) -> Body:
    with transfer(console, f"Uploading {file.name}", size_of(file)) as on_sent:
        if endpoint == MESSAGES:
            return await service.create_messages(lambda: _told(message_batch_body(file), on_sent))
        uploaded = await service.upload(file, on_sent)
    return await service.create(uploaded["id"], endpoint, metadata)


async def _told(
    pieces: AsyncIterator[bytes], on_sent: Callable[[int], None]
) -> AsyncIterator[bytes]:
    sent = 0
    async for piece in pieces:
        yield piece
        sent += len(piece)
        on_sent(sent)


def _follow(
    target: _Target,
    console: Console,
    batch_id: str,
    output: Path | None,
    errors: Path | None,
    *,
    as_json: bool,
) -> NoReturn:
    """Watch a batch to its end, fetch the results if they are wanted, and exit."""

    async def follow(service: Connection) -> Body:
        body = await _watched(service, console, batch_id)
        if output is not None and not _view(body).errors:
            await _fetch(service, console, _view(body), output, errors)
        return body

    try:
        body = target.run(follow)
    except KeyboardInterrupt:
        say(console, f"The batch goes on. Come back with: headrace batch status {batch_id} --watch")
        raise SystemExit(INTERRUPTED) from None
    _end(console, body, as_json=as_json and output != STDOUT)


async def _watched(service: Connection, console: Console, batch_id: str) -> Body:
    """The batch once it has ended. A service that is away for a moment is waited for."""
    loop = asyncio.get_running_loop()
    pause_s = _FIRST_LOOK_S
    give_up_at: float | None = None
    with BatchDisplay(console) as display:
        while True:
            try:
                body = await service.batch_now(batch_id)
                give_up_at = None
                display.show(_view(body))
                if _view(body).ended:
                    return body
            except Transient as error:
                give_up_at = give_up_at or loop.time() + _PATIENCE_S
                if loop.time() > give_up_at:
                    raise
                display.note(f"{error} Trying again …")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.3, _LAST_LOOK_S)


async def _fetch(
    service: Connection, console: Console, batch: BatchView, output: Path, errors: Path | None
) -> None:
    if batch.shape == "messages":
        if errors is not None:
            raise ClientError("Message batches have all lines in one file; leave --errors out.")
        await _download(console, service.message_results(batch.batch_id), output)
        return
    await _download(console, _content(service, batch.output_file_id), output)
    beside = errors or errors_beside(output)
    if batch.error_file_id is not None or errors is not None or beside.exists():
        await _download(console, _content(service, batch.error_file_id), beside)


def _content(service: Connection, file_id: str | None) -> AsyncIterator[bytes]:
    return _nothing() if file_id is None else service.file_content(file_id)


async def _nothing() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for piece in nothing:
        yield piece


async def _download(console: Console, pieces: AsyncIterator[bytes], path: Path) -> None:
    with transfer(console, f"Fetching {path.name}", None) as told, replacing(path) as file:
        await copy(pieces, file, told)


def _end(console: Console, body: Body, *, as_json: bool) -> NoReturn:
    ended = _view(body)
    print_outcome(console, ended)
    if as_json:
        _print_json(body)
    raise SystemExit(ended.exit_status)


def check_outputs(output: Path | None, errors: Path | None) -> None:
    """Refuse places that no results can go to.

    Raises:
        click.UsageError: These are some.
    """
    if output is None:
        if errors is not None:
            raise click.UsageError("--errors goes with --output.")
        return
    if errors == output != STDOUT:
        raise click.UsageError("--output and --errors must not be the same file.")
    for path in (output, errors):
        if path is not None and path != STDOUT and not path.absolute().parent.is_dir():
            raise click.UsageError(f"There is no directory {path.absolute().parent}.")


def _metadata(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError("Metadata is KEY=VALUE.")
        found[name] = value
    return found


def _view(body: Body) -> BatchView:
    try:
        return view(body)
    except ValueError:
        raise ClientError("What answers there is not a service of this kind.") from None


def _print_json(body: Body) -> None:
    click.echo(orjson.dumps(body))


def _console() -> Console:
    return Console(stderr=True)
