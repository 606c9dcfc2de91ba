"""What each failure of the router is called in the Pulsar protocol: one total table; refusals.

The sentence of an answer begins with the failure's stable code, so that our own client can tell
failures apart that are one number to Pulsar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router import errors
from router.broker.consume import HashRangeError, NameBusyError, ProducerFencedError
from router.broker.storage import DamagedError, StoreError
from router.broker.transactions import Refusal, TransactionError
from router.errors import RouterError
from router.errors.quoting import failure_text
from router.wire import ProtocolError
from router.wire.pulsar import command
from router.wire.pulsar import pulsar_pb2 as pb

TABLE: Final[Mapping[str, pb.ServerError]] = {
    errors.RouterError.code: pb.UnknownError,
    errors.BadRequestError.code: pb.NotAllowedError,
    errors.BadNameError.code: pb.InvalidTopicName,
    errors.MissingConsumerError.code: pb.NotAllowedError,
    errors.BadFramingError.code: pb.NotAllowedError,
    errors.BadJsonError.code: pb.NotAllowedError,
    errors.BadCloudEventError.code: pb.NotAllowedError,
    errors.BadReadOptionError.code: pb.NotAllowedError,
    errors.NotAcceptableError.code: pb.NotAllowedError,
    errors.UnsupportedEncodingError.code: pb.NotAllowedError,
    errors.BatchTooLargeError.code: pb.NotAllowedError,
    errors.MessageTooLargeError.code: pb.NotAllowedError,
    errors.ReadBodyTooLargeError.code: pb.NotAllowedError,
    errors.MessageOverMaxBytesError.code: pb.NotAllowedError,
    errors.UnauthenticatedError.code: pb.AuthenticationError,
    errors.ForbiddenError.code: pb.AuthorizationError,
    errors.AccessDeniedError.code: pb.AuthorizationError,
    errors.BlacklistedError.code: pb.AuthorizationError,
    errors.KeyNotFoundError.code: pb.NotAllowedError,
    errors.TopicNotFoundError.code: pb.TopicNotFound,
    errors.InternalTopicError.code: pb.NotAllowedError,
    errors.NamespaceNotFoundError.code: pb.TopicNotFound,
    errors.SchemaNotFoundError.code: pb.TopicNotFound,
    errors.InvalidSchemaError.code: pb.IncompatibleSchema,
    errors.IncompatibleSchemaError.code: pb.IncompatibleSchema,
    errors.PayloadMismatchError.code: pb.NotAllowedError,
    errors.NotSupportedError.code: pb.NotAllowedError,
    errors.TopicExistsError.code: pb.NotAllowedError,
    errors.SubscriptionNotFoundError.code: pb.SubscriptionNotFound,
    errors.SubscriptionLimitError.code: pb.NotAllowedError,
    errors.SubscriptionBusyError.code: pb.ConsumerBusy,
    errors.FencedError.code: pb.NotAllowedError,
    errors.TooManyRequestsError.code: pb.TooManyRequests,
    errors.OverloadedError.code: pb.TooManyRequests,
    errors.PublishRefusedError.code: pb.PersistenceError,
    errors.PartialPublishError.code: pb.PersistenceError,
    errors.BackendUnavailableError.code: pb.ServiceNotReady,
    errors.BackendTimeoutError.code: pb.ServiceNotReady,
    errors.OutcomeUnknownError.code: pb.ServiceNotReady,
    errors.CoordinationUnavailableError.code: pb.ServiceNotReady,
    errors.ConflictError.code: pb.NotAllowedError,
    errors.ConsumerExistsError.code: pb.ConsumerBusy,
    errors.ConsumerNotFoundError.code: pb.ConsumerNotFound,
    errors.ValueNotFoundError.code: pb.MetadataError,
    errors.ReadFailedError.code: pb.PersistenceError,
    errors.DiskFullError.code: pb.PersistenceError,
    errors.TopicTerminatedError.code: pb.TopicTerminatedError,
    errors.TopicHeldError.code: pb.ProducerBusy,
    errors.QuotaExceededError.code: pb.ProducerBlockedQuotaExceededError,
    errors.NotAllowedError.code: pb.NotAllowedError,
    errors.MethodNotAllowedError.code: pb.NotAllowedError,
    errors.PathNotFoundError.code: pb.NotAllowedError,
    errors.SettingError.code: pb.UnknownError,
}

TRANSACTIONS: Final[Mapping[Refusal, pb.ServerError]] = {
    Refusal.UNKNOWN_NAME: pb.NotAllowedError,
    Refusal.UNKNOWN_COORDINATOR: pb.TransactionCoordinatorNotFound,
    Refusal.UNKNOWN_TRANSACTION: pb.TransactionNotFound,
    Refusal.UNKNOWN_PRODUCER: pb.NotAllowedError,
    Refusal.FENCED: pb.ProducerFenced,
    Refusal.BUSY: pb.InvalidTxnStatus,
    Refusal.INVALID_STATE: pb.InvalidTxnStatus,
    Refusal.NOT_JOINED: pb.NotAllowedError,
    Refusal.CONFLICT: pb.TransactionConflict,
    Refusal.FORBIDDEN: pb.AuthorizationError,
    Refusal.INVALID_TIMEOUT: pb.NotAllowedError,
    Refusal.TOO_MANY: pb.NotAllowedError,
}

_RESPONSE: Final = "_RESPONSE"

# Worded as Apache Pulsar words them.
_OF_DISPATCH: Final[Mapping[type[Exception], pb.ServerError]] = {
    NameBusyError: pb.ProducerBusy,
    ProducerFencedError: pb.ProducerFenced,
    HashRangeError: pb.ConsumerAssignError,
}


def answer(failure: Exception) -> tuple[pb.ServerError, str]:
    """Return the error number and sentence that tell a client of this failure."""
    if (number := _OF_DISPATCH.get(type(failure))) is not None:
        return number, str(failure)
    if isinstance(failure, DamagedError | OSError):
        reason = failure_text(failure) if isinstance(failure, OSError) else str(failure)
        return pb.PersistenceError, f"{errors.ReadFailedError.code}: {reason}"
    if isinstance(failure, StoreError):
        return pb.PersistenceError, f"{errors.PublishRefusedError.code}: {failure}"
    if isinstance(failure, TransactionError):
        return TRANSACTIONS[failure.refusal], str(failure)
    if isinstance(failure, RouterError):
        return TABLE[failure.code], f"{failure.code}: {failure}"
    return pb.UnknownError, f"{errors.RouterError.code}: an internal error; see the broker's log"


def request_failed(request_id: int, failure: Exception) -> pb.BaseCommand:
    """Return the ERROR that answers a request."""
    number, sentence = answer(failure)
    return error(request_id, number, sentence)


def error(request_id: int, number: pb.ServerError, sentence: str) -> pb.BaseCommand:
    """Return an ERROR."""
    return command(pb.BaseCommand.ERROR, request_id=request_id, error=number, message=sentence)


def refusal_of(request: pb.BaseCommand, reason: str = "") -> pb.BaseCommand:
    """Return the answer to a request that the broker does not serve, for whatever reason.

    Raises ProtocolError for what no client may send: a server's command, or one without a request.
    """
    kind = request.type
    name = pb.BaseCommand.Type.Name(kind)
    if name.endswith(_RESPONSE) or name.endswith("SUCCESS"):
        raise ProtocolError(f"{name} is a server's command")
    for _field, body in request.ListFields():
        request_id = getattr(body, "request_id", None)
        if request_id is None:
            continue
        sentence = f"{errors.NotAllowedError.code}: {reason or f'{name} is not served'}"
        return error(request_id, pb.NotAllowedError, sentence)
    raise ProtocolError(f"{name} is not served")
