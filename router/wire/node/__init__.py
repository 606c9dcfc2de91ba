"""The node protocol without I/O: commands between the processes of a node, on a Pulsar connection.

A command travels as the content of an EXTENSION command, so that the frames of both protocols share
one connection, and each is read by its own definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.wire.node.node_pb2 import NodeCommand
from router.wire.pulsar import StrictReader, encode, encode_parts
from router.wire.pulsar.pulsar_pb2 import BaseCommand

_READER: Final = StrictReader(NodeCommand)


def extension(**body: Any) -> BaseCommand:
    """Return the Pulsar command that carries a command of the node protocol, named by its field."""
    content = NodeCommand(**body).SerializeToString()
    return BaseCommand(type=BaseCommand.EXTENSION, extension=content)


def frame(**body: Any) -> bytes:
    """Return the frame of a command of the node protocol, named by its field."""
    content = NodeCommand(**body).SerializeToString()
    return encode(BaseCommand(type=BaseCommand.EXTENSION, extension=content))


def parts(command: NodeCommand, payload: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the frame of a command that a payload follows, in pieces."""
    content = command.SerializeToString()
    return encode_parts(BaseCommand(type=BaseCommand.EXTENSION, extension=content), *payload)


def read(content: bytes, *, trusted: bool = False) -> NodeCommand:
    """Return the command that an EXTENSION carries; raise ProtocolError unless it is exactly one.

    Fields and text of a `trusted` peer, such as a broker that this process chose, are not checked.
    """
    return _READER.read(content, trusted=trusted)


__all__ = ["NodeCommand", "extension", "frame", "parts", "read"]
