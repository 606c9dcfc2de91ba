"""What a poll asks for, who asks, and what wakes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from router.backends import Start
from router.model import Subscription
from router.waiting import Wakeup


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


class Client(Protocol):
    """Who waits for the answer."""

    def gone(self) -> bool:
        """Return whether the client closed its connection; never waits."""
        ...

    def look_every(self) -> float:
        """Return after how many seconds to ask again; infinite if the mailbox is woken instead."""
        ...


class Present:
    """A client that is always there."""

    def gone(self) -> bool:
        """Return False."""
        return False

    def look_every(self) -> float:
        """Return infinity."""
        return math.inf


class PollMailbox(Wakeup):
    """Wakes one waiting poll."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a poll asks for; `timeout` in seconds, `max_bytes` None: as settings say.

    `start` is for a group that does not exist yet; a number is a time in ms since 1970.
    """

    subscription: Subscription
    consumer: str
    timeout: float
    limit: int
    max_bytes: int | None = None
    start: Start | int = Start.LATEST
    ack_next: bool = False
