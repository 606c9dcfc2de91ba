"""Why a call about transactions is refused."""

from __future__ import annotations

from enum import Enum, auto


class Refusal(Enum):
    """What is wrong; each dialect has a code for it."""

    UNKNOWN_NAME = auto()
    """There is no transactional producer of this name."""
    UNKNOWN_COORDINATOR = auto()
    """The broker has no coordinator of this number."""
    UNKNOWN_TRANSACTION = auto()
    """No transaction of this id is open."""
    UNKNOWN_PRODUCER = auto()
    """The name belongs to another producer id."""
    FENCED = auto()
    """A later producer of the name, or the end of a timeout, ended this one."""
    BUSY = auto()
    """The transaction is being decided: the call may be repeated at once."""
    INVALID_STATE = auto()
    """There is no transaction in which this may be done."""
    NOT_JOINED = auto()
    """The partition was not added to the transaction."""
    CONFLICT = auto()
    """A message is acknowledged already, for good or in another transaction."""
    FORBIDDEN = auto()
    """The name belongs to another principal."""
    INVALID_TIMEOUT = auto()
    """The timeout is not positive, or longer than the broker allows."""
    TOO_MANY = auto()
    """A bound is reached: of open transactions, of names, or of partitions in one transaction."""


class TransactionError(Exception):
    """A call is refused, and nothing was changed."""

    def __init__(self, refusal: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal = refusal
