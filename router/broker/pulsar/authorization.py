"""What the client of one connection may open; rights are checked then, and never for a message.

A command that names a topic reaches its handler only if the client has the right that the command
needs. A refusal has the form of the command's own response. If a client may do everything, its
commands go to their handlers directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from router.access.permissions import Right
from router.broker.pulsar.client import Handler, PulsarClient
from router.broker.pulsar.failures import answer, error
from router.broker.pulsar.transactions import COORDINATOR_TOPIC
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.identity import ConnectionIdentity
from router.errors import BadNameError, ForbiddenError, RouterError
from router.wire.pulsar import Frame, command
from router.wire.pulsar import pulsar_pb2 as pb

MAX_TOPIC_CHARACTERS: Final = 300

_log = structlog.get_logger(__name__)

Refusal = Callable[[int, pb.ServerError, str], pb.BaseCommand]
"""Makes the answer to a request that is refused."""


def _refuse_lookup(kind: pb.BaseCommand.Type, failed: int) -> Refusal:
    return lambda request_id, number, sentence: command(
        kind, request_id=request_id, response=failed, error=number, message=sentence
    )


def _refuse_schema(kind: pb.BaseCommand.Type) -> Refusal:
    return lambda request_id, number, sentence: command(
        kind, request_id=request_id, error_code=number, error_message=sentence
    )


@dataclass(frozen=True, slots=True)
class _RequiredRight:
    """What a command needs: `body` is its field in BaseCommand, `also` a field that needs more."""

    body: str
    right: Right
    refusal: Refusal
    also: tuple[str, Right] | None = None


_REQUIRED_RIGHTS: Final[Mapping[int, _RequiredRight]] = {
    pb.BaseCommand.PRODUCER: _RequiredRight(
        "producer", Right.PUBLISH, error, ("initial_subscription_name", Right.SUBSCRIBE)
    ),
    pb.BaseCommand.SUBSCRIBE: _RequiredRight("subscribe", Right.SUBSCRIBE, error),
    pb.BaseCommand.PARTITIONED_METADATA: _RequiredRight(
        "partitionMetadata",
        Right.VIEW,
        _refuse_lookup(
            pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
            pb.CommandPartitionedTopicMetadataResponse.Failed,
        ),
    ),
    pb.BaseCommand.LOOKUP: _RequiredRight(
        "lookupTopic",
        Right.VIEW,
        _refuse_lookup(pb.BaseCommand.LOOKUP_RESPONSE, pb.CommandLookupTopicResponse.Failed),
    ),
    pb.BaseCommand.GET_SCHEMA: _RequiredRight(
        "getSchema", Right.VIEW, _refuse_schema(pb.BaseCommand.GET_SCHEMA_RESPONSE)
    ),
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: _RequiredRight(
        "getOrCreateSchema",
        Right.PUBLISH,
        _refuse_schema(pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE),
    ),
}


def authorized_handlers(
    handlers: Mapping[int, Handler], client: PulsarClient
) -> dict[int, Handler]:
    """Return the handlers as this client may reach them."""
    authorizer = client.identity.authorizer
    found = dict(handlers)
    if authorizer is None or authorizer.open or client.identity.trusted:
        return found
    partitions, watch = pb.BaseCommand.PARTITIONED_METADATA, pb.BaseCommand.WATCH_TOPIC_LIST
    if partitions in found:
        found[partitions] = _without_creation(found[partitions], client.identity, authorizer)
    for kind, required in _REQUIRED_RIGHTS.items():
        if kind in found:
            found[kind] = _authorized(found[kind], required, client, authorizer)
    if watch in found:
        found[watch] = _every_topic(found[watch], client, authorizer)
    return found


def _without_creation(
    handler: Handler, who: ConnectionIdentity, authorizer: ListenerAuthorizer
) -> Handler:
    """Let only clients that may use a topic create it by asking for its number of partitions."""

    def may(topic: str, right: Right) -> bool:
        try:
            authorizer.authorize_name(who.principal, topic, right)
        except RouterError:
            return False
        return True

    def handle(frame: Frame) -> None:
        request = frame.command.partitionMetadata
        if not (may(request.topic, Right.PUBLISH) or may(request.topic, Right.SUBSCRIBE)):
            request.metadata_auto_creation_enabled = False
        handler(frame)

    return handle


def _every_topic(handler: Handler, client: PulsarClient, authorizer: ListenerAuthorizer) -> Handler:
    """Let only clients that may see every topic watch: all of them share one list of names.

    A client that is refused asks for the names from time to time, and gets those it may see.
    """

    def handle(frame: Frame) -> None:
        if authorizer.sees_all(client.identity.principal):
            handler(frame)
            return
        failure = ForbiddenError(f"{client.identity.principal.name} may not see every topic")
        _log_refusal(failure, "", client, authorizer)
        client.send(error(frame.command.watchTopicList.request_id, *answer(failure)))

    return handle


def _authorized(
    handler: Handler, required: _RequiredRight, client: PulsarClient, authorizer: ListenerAuthorizer
) -> Handler:
    def handle(frame: Frame) -> None:
        request, principal = getattr(frame.command, required.body), client.identity.principal
        if required.right is Right.VIEW and request.topic.startswith(COORDINATOR_TOPIC):
            handler(frame)  # it is no topic, and clients that may publish or subscribe ask for it
            return
        try:
            authorizer.authorize_name(principal, request.topic, required.right)
            if required.also is not None and getattr(request, required.also[0]):
                authorizer.authorize_name(principal, request.topic, required.also[1])
        except BadNameError:
            pass  # the handler refuses it in its own words
        except RouterError as failure:
            _log_refusal(failure, request.topic, client, authorizer)
            client.send(required.refusal(request.request_id, *answer(failure)))
            return
        handler(frame)

    return handle


def _log_refusal(
    failure: RouterError, topic: str, client: PulsarClient, authorizer: ListenerAuthorizer
) -> None:
    """Log a refusal, unless there are too many in this second."""
    if not isinstance(failure, ForbiddenError):
        return
    if (left_out := authorizer.refusals.admit()) is not None:
        _log.warning(
            "request-refused",
            peer=client.connection.peer.name,
            user=client.identity.principal.name or None,
            topic=topic[:MAX_TOPIC_CHARACTERS],
            code=failure.code,
            reason=str(failure),
            **left_out,
        )
