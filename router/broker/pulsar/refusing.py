"""Commands that exist and are not served: an honest answer, or the end of the connection."""

from __future__ import annotations

from typing import Any, Final

from router.broker.pulsar.failures import NO_TRANSACTIONS, error
from router.errors import NotAllowedError
from router.wire.pulsar import ProtocolError, command
from router.wire.pulsar import pulsar_pb2 as pb

_RESPONSE: Final = "_RESPONSE"
_REQUEST: Final = "_REQUEST"


def refusal_of(asked: pb.BaseCommand, reason: str = "") -> pb.BaseCommand:
    """Return the answer to a request that the broker does not serve, for whatever reason.

    Raises ProtocolError for what no client may send: a server's command, or one without a request.
    """
    kind = asked.type
    name = pb.BaseCommand.Type.Name(kind)
    if name.endswith(_RESPONSE) or name.endswith("SUCCESS"):
        raise ProtocolError(f"{name} is a server's command")
    for _field, body in asked.ListFields():
        request_id = getattr(body, "request_id", None)
        if request_id is None:
            continue
        if pb.BaseCommand.NEW_TXN <= kind <= pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST:
            return _no_transactions(name.removesuffix(_REQUEST), request_id)
        sentence = f"{NotAllowedError.code}: {reason or f'{name} is not served'}"
        return error(request_id, pb.NotAllowedError, sentence)
    raise ProtocolError(f"{name} is not served")


def _no_transactions(name: str, request_id: int) -> pb.BaseCommand:
    """Refuse in a response of the command's own kind.

    Apache Pulsar without a coordinator answers ERROR, which Java clients do not look for once they
    have sent NEW_TXN: their program waits until a timeout.
    """
    kind: Any = pb.BaseCommand.Type.Value(name + _RESPONSE)
    return command(
        kind,
        request_id=request_id,
        error=pb.NotAllowedError,
        message=NO_TRANSACTIONS,
    )
