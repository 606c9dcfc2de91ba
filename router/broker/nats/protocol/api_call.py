"""What a call of the JetStream API is, and how one is described in a table.

A handler that returns a result has it sent in a reply of its type; one that returns None answers by
itself, with messages. A handler may be a coroutine function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from router.broker.nats.protocol.authorization import Caller
from router.wire.nats.jetstream.replies import Result

PREFIX: Final = "$JS.API."


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call: who makes it, what the wildcards of the subject took, the body, where to answer.

    A `>` takes the rest of the subject as one name. `subject` is the whole one.
    """

    caller: Caller
    names: tuple[str, ...]
    body: bytes
    reply: str = ""
    subject: str = ""

    @property
    def name(self) -> str:
        """Return the first name, which is that of the stream."""
        return self.names[0]


Handler = Callable[[ApiCall], Awaitable[Result | None] | Result | None]


@dataclass(frozen=True, slots=True)
class Api:
    """One API: the subject behind `$JS.API.`, the type of its reply ("": messages), its handler."""

    subject: str
    type: str
    handler: Handler
