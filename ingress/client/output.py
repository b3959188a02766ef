"""Where results go: a file that appears when it is whole, or stdout."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

STDOUT: Final = Path("-")


def errors_beside(output: Path) -> Path:
    """Where the lines that failed go by default: `x.errors.jsonl` beside `x.jsonl`."""
    if output == STDOUT:
        return STDOUT
    return output.with_name(f"{output.stem}.errors{output.suffix}")


@contextmanager
def replacing(path: Path, stdout: BinaryIO | None = None) -> Iterator[BinaryIO]:
    """A file to write that takes the place of another one at the end of the block, or never."""
    if path == STDOUT:
        stdout = stdout or sys.stdout.buffer
        yield stdout
        stdout.flush()
        return
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with unfinished.open("xb") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


async def copy(
    pieces: AsyncIterator[bytes], target: BinaryIO, on_written: Callable[[int], None]
) -> None:
    """Write what comes; `on_written` is told the sum of bytes."""
    written = 0
    async for piece in pieces:
        target.write(piece)
        written += len(piece)
        on_written(written)
