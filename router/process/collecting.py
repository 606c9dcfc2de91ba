"""How Python's garbage collector is set in the processes that serve.

Nearly all that a request or an entry leaves behind is freed by its reference count. The collector
is there for cycles, and looks at what is young whenever that has become more by its first
threshold. With Python's own, 700 objects, it looks through what is under way again and again: 4 µs
of each small entry in the broker, a twentieth of a publish over 256 connections. A look at more
objects takes longer, and all wait for it: so the threshold is not larger than it has to be.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG: Final = 10_000
"""So many objects more than before, and the young ones are looked at."""


def keep_loaded() -> None:
    """Leave alone what is loaded: it stays, here and in the processes that are forked.

    A look of the collector takes longer for it, and writes to all of it; what is written to is
    shared between processes no more, 18 MiB for an arbiter with two workers.
    """
    gc.collect()
    gc.freeze()


def let_go() -> None:
    """Have the collector look at everything again: the process ends, in Python's usual order."""
    gc.unfreeze()


def settle() -> None:
    """Set the collector for serving."""
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
