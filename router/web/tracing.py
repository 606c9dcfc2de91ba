"""What views tell of publishes and polls to tracing; it is off unless a setting says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from router.model import Stored

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


class Operation(Protocol):
    """A publish or a poll under way."""

    def stored(self, messages: int) -> None:
        """Note how many messages are stored."""
        ...

    def received(self, messages: Sequence[Stored]) -> None:
        """Note the messages that were received."""
        ...


class Tracing(Protocol):
    """Records operations; one that raises is noted as a failure."""

    def publishing(self, environ: WSGIEnvironment, topic: str) -> AbstractContextManager[Operation]:
        """Record a publish; the context of the request becomes that of the publish."""
        ...

    def receiving(
        self, environ: WSGIEnvironment, topic: str, group: str
    ) -> AbstractContextManager[Operation]:
        """Record a poll of a group, or a reading where it is empty, until it has its messages."""
        ...


class _Unrecorded:
    """An operation that is not recorded."""

    def stored(self, messages: int) -> None:
        """Note nothing."""

    def received(self, messages: Sequence[Stored]) -> None:
        """Note nothing."""


class NoTracing:
    """Records nothing."""

    def publishing(self, environ: WSGIEnvironment, topic: str) -> AbstractContextManager[Operation]:
        """Record nothing."""
        return nullcontext(_UNRECORDED)

    def receiving(
        self, environ: WSGIEnvironment, topic: str, group: str
    ) -> AbstractContextManager[Operation]:
        """Record nothing."""
        return nullcontext(_UNRECORDED)


_UNRECORDED: Final = _Unrecorded()
