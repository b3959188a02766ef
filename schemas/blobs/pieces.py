"""A stream of bytes cut anew; the stores do it alike.

It must not know of any store.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable


async def gathered(pieces: AsyncIterable[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """The same bytes in pieces of exactly `size` bytes; the last may be smaller, but not empty.

    Without any bytes there is one empty piece.
    """
    held, first = bytearray(), True
    async for piece in pieces:
        rest = memoryview(piece)
        while len(held) + len(rest) >= size:
            cut = size - len(held)
            yield bytes(rest[:cut]) if not held else bytes(held + rest[:cut])
            held.clear()
            rest, first = rest[cut:], False
        held += rest
    if held or first:
        yield bytes(held)
