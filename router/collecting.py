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


def settle() -> None:
    """Set the collector for serving."""
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
