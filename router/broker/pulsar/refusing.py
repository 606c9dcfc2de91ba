"""Commands that exist and are not served: an honest answer, or the end of the connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from router.broker.pulsar.failures import error
from router.errors import NotAllowedError
from router.wire.pulsar import ProtocolError
from router.wire.pulsar import pulsar_pb2 as pb

_NEW_TXN: Final = 50
_LENGTH_DELIMITED: Final = 2


def refusal_of(command: pb.BaseCommand, reason: str = "") -> pb.BaseCommand:
    """Return the ERROR for a request that the broker does not serve, for whatever reason.

    Raises ProtocolError for what no client may send: a server's command, or one without a request.
    """
    kind = command.type
    name = pb.BaseCommand.Type.Name(kind)
    if name.endswith("_RESPONSE") or name.endswith("SUCCESS"):
        raise ProtocolError(f"{name} is a server's command")
    if pb.BaseCommand.NEW_TXN <= kind <= pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE:
        return error(
            _hidden_request_id(command), pb.NotAllowedError, "Transactions are not enabled."
        )
    for _field, body in command.ListFields():
        request_id = getattr(body, "request_id", None)
        if request_id is not None:
            sentence = f"{NotAllowedError.code}: {reason or f'{name} is not served'}"
            return error(request_id, pb.NotAllowedError, sentence)
    raise ProtocolError(f"{name} is not served")


def _hidden_request_id(command: pb.BaseCommand) -> int:
    """Return the request id of a transaction command, whose fields our definitions leave out.

    It is field 1 of all of them, as it is of SUCCESS.
    """
    fields = cast("Iterable[Any]", UnknownFieldSet(command))
    for field in fields:
        if field.field_number == command.type and field.wire_type == _LENGTH_DELIMITED:
            try:
                return pb.CommandSuccess.FromString(field.data).request_id
            except DecodeError:
                break
    raise ProtocolError("a transaction command without a request")
