"""How seldom a serving process looks for reference cycles.

What is imported and opened at start is looked through again and again for nothing, and at
thousands of streams a whole look is a third of a second in which nobody gets a token. Most objects
of a request are gone when their last reference is; those in cycles may wait a little.

Measured with 3,000 streams, opened and ended in one go: 36 % of the CPU time went into looking, and
the longest look took 380 ms; now it is 11 % and 62 ms (docs/performance.md).
"""

from __future__ import annotations

import gc
from typing import Final

_NEW_OBJECTS: Final = 10_000
"""So many more must there be before the young ones are looked through; Python's own is 700."""


def spare_what_is_there() -> None:
    """Call it once, when the process has started: what there is now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
