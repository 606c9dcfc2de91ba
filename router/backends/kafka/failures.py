"""What goes wrong between the router and Kafka, and what the router's callers are told of it."""

from __future__ import annotations

from typing import Final

from kafka import errors as kafka_errors

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadNameError,
    BadRequestError,
    NotAllowedError,
    NotSupportedError,
    PublishRefusedError,
    RouterError,
    SubscriptionBusyError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.quoting import said

OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC: Final = 3
TIMED_OUT: Final = 7
TOO_LARGE: Final = frozenset({10, 18})
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
TOPIC_EXISTS: Final = 36
OUT_OF_ORDER: Final = 45
DUPLICATE: Final = 46
OLD_EPOCH: Final = 47
UNKNOWN_PRODUCER: Final = 59
GROUP_NOT_FOUND: Final = 69
FENCED: Final = 90
# Somebody else reads under this group id as a member, with Kafka's own protocol.
MEMBERS: Final = frozenset({22, 25, 27, 68, 86})

_CLASSES: Final[dict[int, type[RouterError]]] = {
    UNKNOWN_TOPIC: TopicNotFoundError,
    10: PublishRefusedError,
    12: NotSupportedError,  # the note of an offset is longer than the broker takes
    17: BadNameError,
    18: PublishRefusedError,
    19: PublishRefusedError,
    TOPIC_EXISTS: TopicExistsError,
    29: NotAllowedError,
    30: NotAllowedError,
    31: NotAllowedError,
    32: PublishRefusedError,
    37: BadRequestError,
    38: BadRequestError,
    40: BadRequestError,
    42: BadRequestError,
    44: BadRequestError,
    53: NotAllowedError,
    73: NotAllowedError,
    87: PublishRefusedError,
    **dict.fromkeys(MEMBERS, SubscriptionBusyError),
}


class LostError(Exception):
    """A connection broke, or was never had; `sent`: the broker may have got the request."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class NobodyError(LostError):
    """No broker at all can be reached."""


class LateError(Exception):
    """The broker did not answer in time; `sent`: it may have got the request."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class CodeError(Exception):
    """A broker answered with an error code."""

    def __init__(self, code: int, about: str, message: str | None = None) -> None:
        found = kafka_errors.for_code(code)
        self.code = code
        self.retriable = bool(found.retriable) and code != UNKNOWN_TOPIC
        self.stale = bool(found.invalid_metadata)
        name = getattr(found, "message", found.__name__)
        super().__init__(f"{about}: {message or name}")


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise CodeError unless the code says that all went well."""
    if code:
        raise CodeError(code, about, message)


def told(error: LostError | LateError | CodeError) -> RouterError:
    """Return what the router's caller is told."""
    if isinstance(error, LateError):
        return BackendTimeoutError(f"Kafka did not answer in time: {said(error)}.")
    if isinstance(error, LostError):
        return BackendUnavailableError(f"Kafka cannot be reached: {said(error)}.", retry_after=1)
    cls = _CLASSES.get(error.code, BackendUnavailableError)
    return cls(f"Kafka: {said(error)}.")
