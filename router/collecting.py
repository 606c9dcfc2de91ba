"""How Python's garbage collector is set in the processes that serve.

Nearly all that a request leaves behind is freed by its reference count. The collector is there for
cycles, and looks at what is young whenever that has become more by its first threshold, 700
objects at first: a few requests that are under way at once are more than that, so it would look
through them again and again, for a tenth of the processor's time.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 20_000
"""Objects, some megabytes at the most, that cycles may keep until the next look."""


def keep_loaded() -> None:
    """Leave alone what is loaded, in this process and those that it forks.

    A look of the collector writes to all that it looks at, and what is written to is shared no more
    between processes: 18 MiB for an arbiter with two workers.
    """
    gc.collect()
    gc.freeze()


def let_go() -> None:
    """Have the collector look at everything again: the process ends, in Python's usual order."""
    gc.unfreeze()


def settle() -> None:
    """Set the collector for serving."""
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
