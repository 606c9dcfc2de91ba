"""The message of NATS, and what became of acknowledgements that were sent together."""

from __future__ import annotations

from typing import NamedTuple

from router.errors import RouterError


class NatsMessage(NamedTuple):
    """A message; `headers` is the whole block, `NATS/1.0` and all, or empty."""

    subject: str
    reply: str = ""
    headers: bytes = b""
    payload: bytes = b""


class AckResult(NamedTuple):
    """How many of several acknowledgements were taken; `failure`: why the next one was not."""

    done: int
    failure: RouterError | None = None
