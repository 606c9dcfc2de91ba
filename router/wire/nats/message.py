"""The message of NATS."""

from __future__ import annotations

from typing import NamedTuple


class NatsMessage(NamedTuple):
    """A message; `headers` is the whole block, `NATS/1.0` and all, or empty."""

    subject: str
    reply: str = ""
    headers: bytes = b""
    payload: bytes = b""
