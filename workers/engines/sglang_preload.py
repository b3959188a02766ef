"""What SGLang's processes have in common. A process that has imported this one is forked for each.

The import takes most of the time in which a small model starts, and every process of SGLang needs
it. It goes on beside the worker's own one, and the processes are there at once when wanted.

On CPUs only: SGLang may touch a GPU while it is imported, which no fork survives.

Source: `multiprocessing.forkserver` of Python.
"""

from __future__ import annotations

from workers.supervisor import die_with_parent

# Its children hold the pipe whose end would tell it, so it would outlive the worker.
die_with_parent()

import sglang.srt.managers.detokenizer_manager  # noqa: E402 - not before it is sure to end
import sglang.srt.managers.scheduler  # noqa: E402, F401
