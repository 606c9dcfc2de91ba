"""What each error of the Pulsar protocol means to the router: one total table.

The peer's refusals of the router itself (its credentials, its load) are not the client's fault, so
they become BackendUnavailableError, or a kind of it, rather than 401 or 429.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.errors import (
    BackendUnavailableError,
    BadNameError,
    ConsumerClosedError,
    CredentialsRefusedError,
    IncompatibleSchemaError,
    NotAllowedError,
    NotServedError,
    PublishRefusedError,
    QuotaExceededError,
    RouterError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicHeldError,
    TopicNotFoundError,
    TopicTerminatedError,
    by_code,
    from_code,
)
from router.process.build import NODE_PROTOCOL, build_id
from router.wire.pulsar import pulsar_pb2 as pb

OURS: Final = "dragoman "


class ElsewhereError(BackendUnavailableError):
    """The broker does not serve the topic, or not yet: another lookup will tell who does."""


_CODES: Final = frozenset(by_code())
TABLE: Final[Mapping[int, type[RouterError]]] = {
    pb.UnknownError: BackendUnavailableError,
    pb.MetadataError: BackendUnavailableError,
    pb.PersistenceError: PublishRefusedError,
    pb.AuthenticationError: CredentialsRefusedError,
    pb.AuthorizationError: NotAllowedError,
    pb.ConsumerBusy: SubscriptionBusyError,
    pb.ServiceNotReady: ElsewhereError,
    pb.ProducerBlockedQuotaExceededError: QuotaExceededError,
    pb.ProducerBlockedQuotaExceededException: QuotaExceededError,
    pb.ChecksumError: PublishRefusedError,
    pb.UnsupportedVersionError: NotAllowedError,
    pb.TopicNotFound: TopicNotFoundError,
    pb.SubscriptionNotFound: SubscriptionNotFoundError,
    pb.ConsumerNotFound: BackendUnavailableError,
    pb.TooManyRequests: BackendUnavailableError,
    pb.TopicTerminatedError: TopicTerminatedError,
    pb.ProducerBusy: PublishRefusedError,
    pb.InvalidTopicName: BadNameError,
    pb.IncompatibleSchema: IncompatibleSchemaError,
    pb.ConsumerAssignError: SubscriptionBusyError,
    pb.TransactionCoordinatorNotFound: NotAllowedError,
    pb.InvalidTxnStatus: NotAllowedError,
    pb.NotAllowedError: NotAllowedError,
    pb.TransactionConflict: NotAllowedError,
    pb.TransactionNotFound: NotAllowedError,
    pb.ProducerFenced: TopicHeldError,
}
# About the router itself, and never about who asked it for something.
_OUR_OWN: Final = {pb.AuthenticationError, pb.AuthorizationError}
# The answer for a consumer that the broker has closed, a moment before it says so.
_NO_CONSUMER: Final = "Consumer not found"
# Pulsar has one number for both; it is only the sentence that says which of the two is taken.
_EXCLUSIVE: Final = "exclusive producer"


class ProducerNameBusyError(PublishRefusedError):
    """Another connection publishes under this name now; it will be free soon."""


def refusal(error: int, message: str) -> RouterError:
    """Return the failure that a peer's error number and sentence stand for.

    The sentences of our own broker begin with the failure's stable code, which says more.
    """
    if error == pb.ProducerBusy:
        held = _EXCLUSIVE in message
        return TopicHeldError(message) if held else ProducerNameBusyError(message)
    if error == pb.MetadataError and message == _NO_CONSUMER:
        return ConsumerClosedError(message)
    code, colon, sentence = message.partition(": ")
    if colon and code in _CODES and error not in _OUR_OWN:
        return from_code(code, sentence)
    return TABLE.get(error, BackendUnavailableError)(message)


def check_build(hello: pb.CommandConnected) -> None:
    """Raise NotServedError for a broker of ours that would misread what this build asks of it."""
    its = hello.router_protocol
    if hello.server_version.startswith(OURS) and its != NODE_PROTOCOL:
        raise NotServedError(
            f"the broker is of the build {hello.server_version.removeprefix(OURS)} (node protocol"
            f" {its}), this process of the build {build_id()} (node protocol {NODE_PROTOCOL}): use"
            " one build for both, or restart the router after an upgrade"
        )
