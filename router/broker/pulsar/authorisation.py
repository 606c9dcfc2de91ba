"""What one connection's client may open: asked when it opens something, and never for a message.

The commands that name a topic are handed on only if the client has the right that they need; a
refusal is answered in each command's own way. Nothing of this is there for a client whom nobody
would refuse anything: its commands go to their handlers directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from router.access.permissions import Right
from router.broker.pulsar.failures import answer, error
from router.errors import BadNameError, ForbiddenError, RouterError
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.gate import Gate
    from router.broker.pulsar.authentication import Authentication
    from router.broker.pulsar.connection import Connection
    from router.broker.pulsar.context import Handler

MAX_TOPIC_CHARACTERS: Final = 300

_log = structlog.get_logger(__name__)

Refusal = Callable[[int, pb.ServerError, str], pb.BaseCommand]
"""Makes the answer to a request that is refused."""


def _no_partitions(request_id: int, number: pb.ServerError, sentence: str) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
        partitionMetadataResponse=pb.CommandPartitionedTopicMetadataResponse(
            request_id=request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
            error=number,
            message=sentence,
        ),
    )


def _no_lookup(request_id: int, number: pb.ServerError, sentence: str) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.LOOKUP_RESPONSE,
        lookupTopicResponse=pb.CommandLookupTopicResponse(
            request_id=request_id,
            response=pb.CommandLookupTopicResponse.Failed,
            error=number,
            message=sentence,
        ),
    )


def _no_schema(request_id: int, number: pb.ServerError, sentence: str) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.GET_SCHEMA_RESPONSE,
        getSchemaResponse=pb.CommandGetSchemaResponse(
            request_id=request_id, error_code=number, error_message=sentence
        ),
    )


def _no_new_schema(request_id: int, number: pb.ServerError, sentence: str) -> pb.BaseCommand:
    return pb.BaseCommand(
        type=pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
        getOrCreateSchemaResponse=pb.CommandGetOrCreateSchemaResponse(
            request_id=request_id, error_code=number, error_message=sentence
        ),
    )


@dataclass(frozen=True, slots=True)
class _Demand:
    """What a command needs: `body` is its field in BaseCommand, `also` a field that needs more."""

    body: str
    right: Right
    refusal: Refusal
    also: tuple[str, Right] | None = None


_DEMANDS: Final[Mapping[int, _Demand]] = {
    pb.BaseCommand.PRODUCER: _Demand(
        "producer", Right.PUBLISH, error, ("initial_subscription_name", Right.SUBSCRIBE)
    ),
    pb.BaseCommand.SUBSCRIBE: _Demand("subscribe", Right.SUBSCRIBE, error),
    pb.BaseCommand.PARTITIONED_METADATA: _Demand("partitionMetadata", Right.VIEW, _no_partitions),
    pb.BaseCommand.LOOKUP: _Demand("lookupTopic", Right.VIEW, _no_lookup),
    pb.BaseCommand.GET_SCHEMA: _Demand("getSchema", Right.VIEW, _no_schema),
    pb.BaseCommand.GET_OR_CREATE_SCHEMA: _Demand(
        "getOrCreateSchema", Right.PUBLISH, _no_new_schema
    ),
}


def guarded(
    handlers: Mapping[int, Handler], connection: Connection, who: Authentication, gate: Gate | None
) -> dict[int, Handler]:
    """Return the handlers as this client may reach them."""
    if gate is None or gate.open or connection.trusted:
        return dict(handlers)
    found = dict(handlers)
    count = pb.BaseCommand.PARTITIONED_METADATA
    if count in found:
        found[count] = _making_nothing(found[count], who, gate)
    for kind, demand in _DEMANDS.items():
        if kind in found:
            found[kind] = _guard(found[kind], demand, connection, who, gate)
    watch = pb.BaseCommand.WATCH_TOPIC_LIST
    if watch in found:
        found[watch] = _whole_list(found[watch], connection, who, gate)
    return found


def _making_nothing(handler: Handler, who: Authentication, gate: Gate) -> Handler:
    """Have only those who may use a topic make it by asking for the number of its partitions."""

    def may(topic: str, right: Right) -> bool:
        try:
            gate.demand(who.principal, topic, right)
        except RouterError:
            return False
        return True

    def guard(frame: Frame) -> None:
        asked = frame.command.partitionMetadata
        if not (may(asked.topic, Right.PUBLISH) or may(asked.topic, Right.SUBSCRIBE)):
            asked.metadata_auto_creation_enabled = False
        handler(frame)

    return guard


def _whole_list(
    handler: Handler, connection: Connection, who: Authentication, gate: Gate
) -> Handler:
    """Have only those watch who may see every topic: all clients share one list of names.

    Others are told so, and ask for the names from time to time, which has what they may see.
    """

    def guard(frame: Frame) -> None:
        if gate.sees_all(who.principal):
            handler(frame)
            return
        failure = ForbiddenError(f"{who.principal.name} may not see every topic")
        _note(failure, "", connection, who, gate)
        request_id = frame.command.watchTopicList.request_id
        connection.send(error(request_id, *answer(failure)))

    return guard


def _guard(
    handler: Handler, demand: _Demand, connection: Connection, who: Authentication, gate: Gate
) -> Handler:
    def guard(frame: Frame) -> None:
        asked = getattr(frame.command, demand.body)
        try:
            gate.demand(who.principal, asked.topic, demand.right)
            if demand.also is not None and getattr(asked, demand.also[0]):
                gate.demand(who.principal, asked.topic, demand.also[1])
        except BadNameError:
            pass  # the handler words it
        except RouterError as failure:
            _note(failure, asked.topic, connection, who, gate)
            connection.send(demand.refusal(asked.request_id, *answer(failure)))
            return
        handler(frame)

    return guard


def _note(
    failure: RouterError, topic: str, connection: Connection, who: Authentication, gate: Gate
) -> None:
    """Log a refusal, unless there are too many."""
    if isinstance(failure, ForbiddenError) and (left_out := gate.refusals.admit()) is not None:
        _log.warning(
            "request-refused",
            peer=connection.peer,
            user=who.principal.name or None,
            topic=topic[:MAX_TOPIC_CHARACTERS],
            code=failure.code,
            reason=str(failure),
            **left_out,
        )
