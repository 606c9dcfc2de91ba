"""What each failure of the router is called in Kafka's protocol: one total table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router import errors
from router.broker.storage import DamagedError, StoreError
from router.broker.transactions import Refusal, TransactionError
from router.errors import RouterError
from router.errors.quoting import failure_text
from router.wire.kafka.error_codes import ErrorCode

__all__ = ["FAILURES", "REFUSALS", "ErrorCode", "KafkaError", "error_code", "error_message"]

FAILURES: Final[Mapping[str, ErrorCode]] = {
    errors.RouterError.code: ErrorCode.UNKNOWN_SERVER_ERROR,
    errors.BadRequestError.code: ErrorCode.INVALID_REQUEST,
    errors.BadNameError.code: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.MissingConsumerError.code: ErrorCode.INVALID_REQUEST,
    errors.BadFramingError.code: ErrorCode.INVALID_REQUEST,
    errors.BadJsonError.code: ErrorCode.INVALID_REQUEST,
    errors.BadCloudEventError.code: ErrorCode.INVALID_REQUEST,
    errors.BadReadOptionError.code: ErrorCode.INVALID_REQUEST,
    errors.NotAcceptableError.code: ErrorCode.INVALID_REQUEST,
    errors.UnsupportedEncodingError.code: ErrorCode.INVALID_REQUEST,
    errors.BatchTooLargeError.code: ErrorCode.MESSAGE_TOO_LARGE,
    errors.MessageTooLargeError.code: ErrorCode.MESSAGE_TOO_LARGE,
    errors.ReadBodyTooLargeError.code: ErrorCode.MESSAGE_TOO_LARGE,
    errors.MessageOverMaxBytesError.code: ErrorCode.MESSAGE_TOO_LARGE,
    errors.UnauthenticatedError.code: ErrorCode.SASL_AUTHENTICATION_FAILED,
    errors.ForbiddenError.code: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.AccessDeniedError.code: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    errors.BlacklistedError.code: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    errors.KeyNotFoundError.code: ErrorCode.INVALID_REQUEST,
    errors.TopicNotFoundError.code: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.NamespaceNotFoundError.code: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.SchemaNotFoundError.code: ErrorCode.INVALID_REQUEST,
    errors.InvalidSchemaError.code: ErrorCode.INVALID_RECORD,
    errors.IncompatibleSchemaError.code: ErrorCode.INVALID_RECORD,
    errors.PayloadMismatchError.code: ErrorCode.INVALID_RECORD,
    errors.NotSupportedError.code: ErrorCode.INVALID_REQUEST,
    errors.InternalTopicError.code: ErrorCode.INVALID_TOPIC_EXCEPTION,
    errors.TopicExistsError.code: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.SubscriptionNotFoundError.code: ErrorCode.GROUP_ID_NOT_FOUND,
    errors.SubscriptionLimitError.code: ErrorCode.POLICY_VIOLATION,
    errors.SubscriptionBusyError.code: ErrorCode.NON_EMPTY_GROUP,
    errors.FencedError.code: ErrorCode.ILLEGAL_GENERATION,
    errors.TooManyRequestsError.code: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    errors.OverloadedError.code: ErrorCode.REQUEST_TIMED_OUT,
    errors.PublishRefusedError.code: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.PartialPublishError.code: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.BackendUnavailableError.code: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    errors.BackendTimeoutError.code: ErrorCode.REQUEST_TIMED_OUT,
    errors.OutcomeUnknownError.code: ErrorCode.REQUEST_TIMED_OUT,
    errors.CoordinationUnavailableError.code: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    errors.ConflictError.code: ErrorCode.INVALID_REQUEST,
    errors.ConsumerExistsError.code: ErrorCode.NON_EMPTY_GROUP,
    errors.ConsumerNotFoundError.code: ErrorCode.UNKNOWN_MEMBER_ID,
    errors.ValueNotFoundError.code: ErrorCode.RESOURCE_NOT_FOUND,
    errors.ReadFailedError.code: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.DiskFullError.code: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.TopicTerminatedError.code: ErrorCode.POLICY_VIOLATION,
    errors.TopicHeldError.code: ErrorCode.POLICY_VIOLATION,
    errors.QuotaExceededError.code: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    errors.NotAllowedError.code: ErrorCode.POLICY_VIOLATION,
    errors.MethodNotAllowedError.code: ErrorCode.INVALID_REQUEST,
    errors.PathNotFoundError.code: ErrorCode.INVALID_REQUEST,
    errors.SettingError.code: ErrorCode.UNKNOWN_SERVER_ERROR,
}


TRANSACTION_CODES: Final[Mapping[Refusal, ErrorCode]] = {
    Refusal.UNKNOWN_NAME: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    Refusal.UNKNOWN_PRODUCER: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    Refusal.UNKNOWN_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Refusal.UNKNOWN_TRANSACTION: ErrorCode.INVALID_TXN_STATE,
    Refusal.FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    Refusal.BUSY: ErrorCode.CONCURRENT_TRANSACTIONS,
    Refusal.INVALID_STATE: ErrorCode.INVALID_TXN_STATE,
    Refusal.NOT_JOINED: ErrorCode.INVALID_TXN_STATE,
    Refusal.CONFLICT: ErrorCode.INVALID_TXN_STATE,
    Refusal.FORBIDDEN: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Refusal.INVALID_TIMEOUT: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    Refusal.TOO_MANY: ErrorCode.POLICY_VIOLATION,
}


class KafkaError(Exception):
    """A request, or one part of it, is refused with a code of Kafka's and a sentence, if any."""

    def __init__(self, code: ErrorCode, sentence: str = "") -> None:
        super().__init__(sentence)
        self.code = code


REFUSALS: Final = (
    KafkaError,
    TransactionError,
    RouterError,
    DamagedError,
    StoreError,
    OSError,
)
"""What ends one part of a request, and not the others nor the connection."""


def error_code(failure: Exception) -> ErrorCode:
    """Return the code that tells a client of a failure."""
    if isinstance(failure, KafkaError):
        return failure.code
    if isinstance(failure, TransactionError):
        return TRANSACTION_CODES[failure.refusal]
    if isinstance(failure, RouterError):
        return FAILURES[failure.code]
    if isinstance(failure, DamagedError | StoreError | OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_message(failure: Exception) -> str | None:
    """Return the sentence that tells a client of a failure, None: the code says it all."""
    if isinstance(failure, RouterError):
        return f"{failure.code}: {failure}"
    return failure_text(failure) if isinstance(failure, OSError) else str(failure) or None
