"""Messages that live elsewhere, in another server: here, whoever asks for them is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.broker.pulsar.context import Handler
from router.broker.pulsar.refusing import refusal_of
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection

# What clients begin with; a command about a producer or consumer that never was ends a connection.
_REQUESTS: Final = (
    pb.BaseCommand.PARTITIONED_METADATA,
    pb.BaseCommand.LOOKUP,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE,
    pb.BaseCommand.GET_SCHEMA,
    pb.BaseCommand.PRODUCER,
    pb.BaseCommand.SUBSCRIBE,
)


class NoMessages:
    """The Messages of a broker that has no log; `sentence` says where they are."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def traffic(self, connection: Connection) -> NoTraffic:
        """Return what a new connection does with messages: nothing."""
        return NoTraffic(connection, self._sentence)

    async def settled(self) -> None:
        """Return at once."""


class NoTraffic:
    """Refuses what one connection asks of messages."""

    def __init__(self, connection: Connection, sentence: str) -> None:
        self._connection = connection
        self._sentence = sentence

    def handlers(self) -> dict[int, Handler]:
        """Return the commands that are refused with the sentence."""
        return dict.fromkeys(_REQUESTS, self.refuse)

    def refuse(self, frame: Frame) -> None:
        """Answer a request."""
        self._connection.send(refusal_of(frame.command, self._sentence))

    def read(self) -> None:
        """Do nothing: nothing waits to be stored."""

    def gone(self) -> None:
        """Do nothing: the client had nothing."""
