"""Failures of requests to Kafka, and the errors that callers get for them."""

from __future__ import annotations

from typing import Final

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadNameError,
    BadRequestError,
    CredentialsRefusedError,
    EntryTooLargeError,
    NotAllowedError,
    NotSupportedError,
    PublishRefusedError,
    RouterError,
    SubscriptionBusyError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.errors.quoting import failure_text
from router.wire.kafka.error_codes import RETRIABLE, ErrorCode, error_name


def codes(names: str) -> frozenset[int]:
    """Return the error codes with these names."""
    return frozenset(ErrorCode[name] for name in names.split())


_ERRORS: Final[dict[type[RouterError], str]] = {
    TopicNotFoundError: "UNKNOWN_TOPIC_OR_PARTITION",
    TopicExistsError: "TOPIC_ALREADY_EXISTS",
    BadNameError: "INVALID_TOPIC_EXCEPTION",
    EntryTooLargeError: "MESSAGE_TOO_LARGE RECORD_LIST_TOO_LARGE",
    PublishRefusedError: "NOT_ENOUGH_REPLICAS INVALID_TIMESTAMP INVALID_RECORD",
    NotSupportedError: "OFFSET_METADATA_TOO_LARGE",
    NotAllowedError: "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED"
    " CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED TOPIC_DELETION_DISABLED",
    BadRequestError: "INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_CONFIG INVALID_REQUEST"
    " POLICY_VIOLATION",
    # Another client reads under this group id as a member, with Kafka's own protocol.
    SubscriptionBusyError: "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS"
    " NON_EMPTY_GROUP GROUP_SUBSCRIBED_TO_TOPIC",
}
_CLASSES: Final[dict[int, type[RouterError]]] = {
    code: cls for cls, names in _ERRORS.items() for code in codes(names)
}


class NoAnswerError(Exception):
    """A broker did not answer; `sent`: it may have got the request."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class KafkaConnectionLostError(NoAnswerError):
    """A connection broke, or was never had."""


class NoBrokerError(KafkaConnectionLostError):
    """No broker at all can be reached."""


class KafkaCredentialsError(KafkaConnectionLostError):
    """A broker refused the credentials, as it will again."""


class LateError(NoAnswerError):
    """The broker did not answer in time."""


class CodeError(Exception):
    """A broker answered with an error code."""

    def __init__(self, code: int, about: str, message: str | None = None) -> None:
        self.code = code
        self.retriable = code in RETRIABLE and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        super().__init__(f"{about}: {message or error_name(code)}")


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise CodeError unless the code says that all went well."""
    if code:
        raise CodeError(code, about, message)


def router_error(error: NoAnswerError | CodeError) -> RouterError:
    """Return what the caller of the router gets."""
    if isinstance(error, LateError):
        return BackendTimeoutError(f"Kafka did not answer in time: {failure_text(error)}.")
    if isinstance(error, KafkaCredentialsError):
        return CredentialsRefusedError(f"Kafka refuses the router: {failure_text(error)}.")
    if isinstance(error, NoAnswerError):
        return BackendUnavailableError(
            f"Kafka cannot be reached: {failure_text(error)}.", retry_after=1
        )
    cls = _CLASSES.get(error.code, BackendUnavailableError)
    busy = cls is SubscriptionBusyError
    why = ", since the group has active consumers of Kafka's own protocol" if busy else ""
    return cls(f"Kafka: {failure_text(error)}{why}.")
