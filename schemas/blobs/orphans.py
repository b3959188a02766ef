"""Blobs that nobody will ask for again: of writers that were killed, and of records that are gone.

A process that dies between a blob and its record, or while it writes, leaves bytes without an
owner. Files, inputs and results of batches are told from such leftovers by the records alone, which
this module does not know: it is given the question. Blobs of Jobs say themselves how long they are
needed; see `schemas.blobs.jobs`.

Several processes may sweep at the same time, and again at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import islice

from schemas.blobs.base import UNFINISHED, BlobStore

FOLDERS = ("files", "batches", "results")

ANSWERS = "answers"
"""Each of its blobs belongs to a record of its own and goes with that; but for what killed writers
left."""

YOUNGEST_S = 86_400.0
"""No younger blob is ever deleted: its record may still be on its way, and clocks differ."""

_ASKED_AT_ONCE = 500

Named = Callable[[Sequence[str]], Awaitable[Collection[str]]]
"""Given keys, tells which of them some record names."""


async def sweep_orphans(store: BlobStore, now: float, named: Named) -> int:
    """Delete what lies in `files/`, `batches/` and `results/` and is nobody's; returns how many.

    Args:
        store: To be swept; several processes may sweep the same.
        now: Unix time.
        named: Asked for a few hundred keys at a time, each of a blob that is older than a day.
            Besides what records name it must name what may be written under the same key from now
            on, which is all that an unfinished batch may leave: deleting cannot tell an old blob
            from the one that has just replaced it. What it raises ends the sweep.

    Raises:
        BlobStoreUnavailable: Some may be left.
    """
    deleted = await sweep_unfinished(store, now, (*FOLDERS, ANSWERS))
    for folder in FOLDERS:
        old = iter([key for key in await _old(store, folder, now) if not UNFINISHED.search(key)])
        while keys := tuple(islice(old, _ASKED_AT_ONCE)):
            owned = await named(keys)
            for key in keys:
                if key not in owned:
                    await store.delete(key)
                    deleted += 1
    return deleted


async def sweep_unfinished(store: BlobStore, now: float, folders: Sequence[str] = FOLDERS) -> int:
    """Delete what killed writers left in these folders; returns how many.

    A bucket shows no uploads that were never finished: there a lifecycle rule deletes them.

    Raises:
        BlobStoreUnavailable: Some may be left.
    """
    deleted = 0
    for folder in folders:
        for key in await _old(store, folder, now):
            if UNFINISHED.search(key):
                await store.delete(key)
                deleted += 1
    return deleted


async def _old(store: BlobStore, folder: str, now: float) -> Sequence[str]:
    """Keys of what was last written more than a day ago; a writer at work writes on."""
    blobs = await store.list(folder)
    return [key for key, written in blobs.items() if written < now - YOUNGEST_S]
