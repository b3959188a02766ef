"""Imports what SGLang's processes have in common, in the one that they are forked from.

Only that process may import this module: it binds its importer to the life of its parent.

The import takes most of the time in which a small model starts, and every process of SGLang needs
it. It goes on beside the worker's own one, and the processes are there at once when wanted.

On CPUs only: SGLang may touch a GPU while it is imported, which no fork survives.

Source: `multiprocessing.forkserver` of Python.
"""

from __future__ import annotations

import gc

from workers.supervisor import die_with_parent


def _prepare() -> None:
    # Its children hold the pipe whose end would tell it, so it would outlive the worker.
    die_with_parent()
    gc.disable()  # a fifth of the import would be spent on looking for garbage
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler  # noqa: F401

    gc.freeze()  # what is imported stays, and its memory stays shared
    gc.enable()


_prepare()
