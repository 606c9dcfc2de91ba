"""The one word between the worker and the application that WSGI does not have: an answer later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from router.waiting import Steps

LATER: Final = "router.later"
"""In the environment of a request whose server takes a `Later` for an answer."""


class Later:
    """An application's answer that is still to come: its steps return what WSGI's would have been.

    `start_response` is called before they end.
    """

    __slots__ = ("steps",)

    def __init__(self, steps: Steps[Iterable[bytes]]) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[bytes]:
        raise TypeError(f"{LATER} was asked for: take the steps")
