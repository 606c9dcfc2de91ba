"""The message router: one durable log, spoken to in several dialects.

What other projects may import is on the page docs/embedding.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.embedding import Router

__all__ = ["Router"]


def __getattr__(name: str) -> object:
    """Return `Router`, loaded when it is first named: all modules of the router import this one."""
    if name != "Router":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from router.embedding import Router  # noqa: PLC0415

    return Router
