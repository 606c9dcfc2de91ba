"""The handshake with a Pulsar broker: CONNECT, what the broker answers, and the connection then."""

from __future__ import annotations

import time
from typing import Final

from router.errors import BackendUnavailableError
from router.process.build import build_id
from router.pulsar_client.connection import CHUNK_BYTES, PROTOCOL, PulsarConnection
from router.pulsar_client.credentials import NO_CREDENTIALS, PulsarCredentials
from router.pulsar_client.refusals import check_build, refusal
from router.pulsar_client.tls import ByteStream
from router.wire.pulsar import Frame, ProtocolError, PulsarFrameReader, encode
from router.wire.pulsar import pulsar_pb2 as pb

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""A broker may be set to keep larger messages than most do, and its readers get them."""


def shake_hands(
    peer: ByteStream,
    deadline: float,
    proxy_to: str = "",
    credentials: PulsarCredentials = NO_CREDENTIALS,
) -> PulsarConnection:
    """Make a connection of a socket that just connected; close the socket on failure.

    Raises OSError, BackendUnavailableError, and NotServedError where the peer is a broker of ours
    with another version of the node protocol, or refuses the credentials.
    """
    try:
        connect = pb.CommandConnect(
            client_version=f"router/{build_id()}",
            protocol_version=PROTOCOL,
            auth_method_name=credentials.method,
            auth_data=credentials.secret(),
            feature_flags=pb.FeatureFlags(
                supports_broker_entry_metadata=True, supports_auth_refresh=True
            ),
        )
        if proxy_to:
            connect.proxy_to_broker_url = proxy_to
        peer.settimeout(max(0.001, deadline - time.monotonic()))
        peer.sendall(encode(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect)))
        reader = PulsarFrameReader(MAX_FRAME_BYTES)
        first, *rest = _first_frames(peer, reader)
        return PulsarConnection(peer, reader, _connected(first.command), rest, credentials)
    except ProtocolError as error:
        peer.close()
        raise BackendUnavailableError(
            f"the peer does not speak the Pulsar protocol: {error}"
        ) from error
    except BaseException:
        peer.close()
        raise


def _connected(command: pb.BaseCommand) -> pb.CommandConnected:
    if command.type == pb.BaseCommand.CONNECTED:
        check_build(command.connected)
        return command.connected
    if command.type == pb.BaseCommand.ERROR:
        raise refusal(command.error.error, command.error.message)
    raise BackendUnavailableError("the peer does not speak the Pulsar protocol")


def _first_frames(peer: ByteStream, reader: PulsarFrameReader) -> list[Frame]:
    while True:
        data = peer.recv(CHUNK_BYTES)
        if not data:
            raise BackendUnavailableError("the broker closed the connection at once")
        if frames := reader.receive(data):
            return frames
