"""A stream of bytes cut anew; the stores do it alike.

It must not know of any store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable


async def gathered(pieces: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """The same bytes in pieces of exactly `size` bytes; the last may be smaller, but not empty.

    Without any bytes there is one empty piece.
    """
    held, cut_any = bytearray(), False
    async for piece in pieces:
        rest = memoryview(piece)
        while len(held) + len(rest) >= size:
            cut = size - len(held)
            held += rest[:cut]
            full = bytes(held)
            held.clear()  # whoever gets the piece may take long
            rest, cut_any = rest[cut:], True
            yield full
            del full
        held += rest
    if held or not cut_any:
        yield bytes(held)
