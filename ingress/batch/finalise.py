"""The last step of a batch: what has been stored of it becomes what its client downloads.

All of it may be repeated after a kill at any moment. File ids follow from the batch's, blobs are
replaced, and the batch ends in one transaction that also makes the files known; only then are the
stored results dropped. So who was asleep for longer than its lease may find nothing there any more:
nobody replaces a blob without having made sure, after the last read, that the batch is still its
own. Memory is constant: input and results are read side by side, line by line.

Source: wire reference of the batch APIs, "Output line", "Error-file line" and "Result line".
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Literal

import msgspec
import structlog

from ingress.batch import lifecycle, result_lines
from ingress.batch.endings import closing
from ingress.batch.inputs import read_lines
from ingress.batch.lines import parse_line
from ingress.batch.validation import INPUT_MISSING
from ingress.stores.base import BatchStore, LeaseLost
from schemas.batch import Batch, LineError, StoredFile
from schemas.blobs.base import BlobMissing, BlobStore

log = structlog.get_logger(__name__)

_END = b"\n"


def file_id(batch_id: str, kind: Literal["output", "error"]) -> str:
    """The id of a file that a batch makes: the same whoever makes it and how often."""
    return f"file-{hashlib.sha256(f'{batch_id} {kind}'.encode()).hexdigest()[:24]}"


def blobs_at_end(batch_id: str) -> tuple[str, ...]:
    """Every blob that a batch may leave, of whichever shape it is."""
    return (
        _file_key(file_id(batch_id, "output")),
        _file_key(file_id(batch_id, "error")),
        _results_key(batch_id),
    )


def _file_key(name: str) -> str:
    return f"files/{name}"


def _results_key(batch_id: str) -> str:
    return f"results/{batch_id}"


class _Written(msgspec.Struct):
    """What the files turn out to hold.

    Attributes:
        left_out: Lines that were not executed.
        input_missing: They could not be named.
    """

    left_out: int = 0
    input_missing: bool = False


class Finaliser:
    """Writes the results of one batch that runs no more.

    Args:
        owner: Of the lease.
        clock: Gives Unix seconds.
    """

    def __init__(
        self, store: BatchStore, blobs: BlobStore, owner: str, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._owner = owner
        self._clock = clock

    async def finalise(self, batch: Batch) -> Batch:
        """The batch as it has ended.

        Raises:
            LeaseLost: Another batcher has it, or has ended it.
            StoreUnavailable, BlobStoreUnavailable: It has to be done once more.
        """
        batch = await self._ours(batch)
        if batch.status in lifecycle.ENDED:
            return batch  # an earlier try went through, and only its answer was lost
        written = _Written()
        if batch.shape == "messages":
            files: list[StoredFile] = []
            ended = await self._write_results(batch, written)
        else:
            files, ended = await self._write_files(batch, written)
        changed = await self._store.change_batch(
            batch.batch_id,
            lambda current: _ended(current, ended, written, self._clock()),
            owner=self._owner,
            files=files,
        )
        return changed or batch

    async def _write_results(self, batch: Batch, written: _Written) -> dict[str, str | None]:
        key = _results_key(batch.batch_id)
        async with closing(self._all_lines(batch, written, succeeded=True)) as lines:
            await self._blobs.write(key, lines)
        return {"results_blob": key}

    async def _write_files(
        self, batch: Batch, written: _Written
    ) -> tuple[list[StoredFile], dict[str, str | None]]:
        output = error = None
        if batch.counts.succeeded:
            output = await self._write_file(batch, "output", self._succeeded(batch))
        if batch.counts.succeeded < batch.counts.total:
            lines = self._all_lines(batch, written, succeeded=False)
            error = await self._write_file(batch, "error", lines)
        return [file for file in (output, error) if file is not None], {
            "output_file_id": output.file_id if output else None,
            "error_file_id": error.file_id if error else None,
        }

    async def _write_file(
        self, batch: Batch, kind: Literal["output", "error"], lines: AsyncIterator[bytes]
    ) -> StoredFile | None:
        """A file with these lines; None if there are none."""
        name = file_id(batch.batch_id, kind)
        key = _file_key(name)
        async with closing(lines):
            size = await self._blobs.write(key, lines)
        if not size:
            await self._blobs.delete(key)
            return None
        now = int(self._clock())
        lasts_s = batch.output_expires_after_s
        return StoredFile(
            file_id=name,
            account=batch.account,
            filename=f"{batch.batch_id}_{kind}.jsonl",
            purpose="batch_output",
            size=size,
            created_at=now,
            expires_at=now + lasts_s if lasts_s is not None else None,
            blob=key,
        )

    async def _succeeded(self, batch: Batch) -> AsyncIterator[bytes]:
        async with closing(self._store.results(batch.batch_id)) as results:
            async for _, outcome, text in results:
                if outcome == "succeeded":
                    yield text + _END
        await self._ours(batch)  # so all that was read was all there

    async def _all_lines(
        self, batch: Batch, written: _Written, *, succeeded: bool
    ) -> AsyncIterator[bytes]:
        """A line for every input line, in order; for the succeeded ones only if asked for."""
        why: Literal["cancelled", "expired"] = (
            "cancelled" if batch.status == "cancelling" else "expired"
        )
        written.left_out, written.input_missing = 0, False
        async with closing(self._store.results(batch.batch_id)) as results:
            next_result = await anext(results, None)
            try:
                async with closing(read_lines(self._blobs, batch.input_blob)) as lines:
                    async for number, text in lines:
                        if next_result is not None and next_result[0] == number:
                            if succeeded or next_result[1] != "succeeded":
                                yield next_result[2] + _END
                            next_result = await anext(results, None)
                        elif (line := _not_executed(batch, number, text, why)) is not None:
                            written.left_out += 1
                            yield line
            except BlobMissing:
                log.error("batch.input_missing", batch_id=batch.batch_id)
                written.input_missing = True
            while next_result is not None:  # of lines that cannot be read any more
                if succeeded or next_result[1] != "succeeded":
                    yield next_result[2] + _END
                next_result = await anext(results, None)
        await self._ours(batch)  # so all that was read was all there

    async def _ours(self, batch: Batch) -> Batch:
        """The batch as it is now.

        Raises:
            LeaseLost: Another batcher has it, or has ended it and dropped its results.
        """
        found = await self._store.change_batch(
            batch.batch_id, lambda current: current, owner=self._owner
        )
        if found is None:
            raise LeaseLost
        return found


def _not_executed(
    batch: Batch, number: int, text: bytes | None, why: Literal["cancelled", "expired"]
) -> bytes | None:
    line = parse_line(number, text, shape=batch.shape, endpoint=batch.endpoint)
    if isinstance(line, LineError):
        log.error("batch.line_unreadable", batch_id=batch.batch_id, line=number, code=line.code)
        return None
    result = result_lines.not_executed(
        batch.shape,
        custom_id=line.custom_id,
        result_id=result_lines.result_id(batch.batch_id, number),
        why=why,
    )
    return result + _END


def _ended(batch: Batch, ended: dict[str, str | None], written: _Written, now: float) -> Batch:
    if batch.status in lifecycle.ENDED:
        return batch  # the transaction had gone through, and only its answer had been lost
    if written.input_missing:
        # What has been executed is there; of the rest nobody knows the names any more.
        counts = batch.counts
        batch = msgspec.structs.replace(
            batch,
            **ended,
            counts=msgspec.structs.replace(counts, errored=counts.total - counts.succeeded),
        )
        return lifecycle.invalid(batch, [INPUT_MISSING], now)
    cancelled = batch.status == "cancelling"
    return lifecycle.finished(
        batch,
        now=now,
        cancelled=written.left_out if cancelled else 0,
        expired=0 if cancelled else written.left_out,
        **ended,
    )
