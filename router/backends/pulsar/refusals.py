"""What each error of the Pulsar protocol means to the router: one total table.

The peer's refusals of the router itself (its credentials, its load) are not the client's fault, so
they become BackendUnavailableError rather than 401 or 429.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.errors import (
    BackendUnavailableError,
    BadNameError,
    NotAllowedError,
    PublishRefusedError,
    QuotaExceededError,
    RouterError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    by_code,
    from_code,
)
from router.wire.pulsar import pulsar_pb2 as pb

_CODES: Final = frozenset(by_code())
TABLE: Final[Mapping[int, type[RouterError]]] = {
    pb.UnknownError: BackendUnavailableError,
    pb.MetadataError: BackendUnavailableError,
    pb.PersistenceError: PublishRefusedError,
    pb.AuthenticationError: BackendUnavailableError,
    pb.AuthorizationError: NotAllowedError,
    pb.ConsumerBusy: SubscriptionBusyError,
    pb.ServiceNotReady: BackendUnavailableError,
    pb.ProducerBlockedQuotaExceededError: QuotaExceededError,
    pb.ProducerBlockedQuotaExceededException: QuotaExceededError,
    pb.ChecksumError: PublishRefusedError,
    pb.UnsupportedVersionError: NotAllowedError,
    pb.TopicNotFound: TopicNotFoundError,
    pb.SubscriptionNotFound: SubscriptionNotFoundError,
    pb.ConsumerNotFound: BackendUnavailableError,
    pb.TooManyRequests: BackendUnavailableError,
    pb.TopicTerminatedError: PublishRefusedError,
    pb.ProducerBusy: PublishRefusedError,
    pb.InvalidTopicName: BadNameError,
    pb.IncompatibleSchema: PublishRefusedError,
    pb.ConsumerAssignError: SubscriptionBusyError,
    pb.TransactionCoordinatorNotFound: NotAllowedError,
    pb.InvalidTxnStatus: NotAllowedError,
    pb.NotAllowedError: NotAllowedError,
    pb.TransactionConflict: NotAllowedError,
    pb.TransactionNotFound: NotAllowedError,
    pb.ProducerFenced: PublishRefusedError,
}


class ProducerNameBusyError(PublishRefusedError):
    """Another connection publishes under this name now; it will be free soon."""


def refusal(error: int, message: str) -> RouterError:
    """Return the failure that a peer's error number and sentence stand for.

    The sentences of our own broker begin with the failure's stable code, which says more.
    """
    if error == pb.ProducerBusy:
        return ProducerNameBusyError(message)
    code, colon, sentence = message.partition(": ")
    if colon and code in _CODES:
        return from_code(code, sentence)
    return TABLE.get(error, BackendUnavailableError)(message)
