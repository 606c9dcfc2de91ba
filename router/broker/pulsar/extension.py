"""The administration extension on one connection: requests about topics, and claims of polls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.broker.pulsar.context import Context, Handler
from router.errors import NotAllowedError
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection

_REFUSAL = "administration is served on the node's socket and to administrators"


class Extension:
    """What one connection asks of the node, if its client may administer it."""

    def __init__(self, connection: Connection, context: Context) -> None:
        self._connection = connection
        self._admin = context.admin
        self._leases = context.leases

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.ADMIN: self.administer,
            pb.BaseCommand.CLAIM: self.claim,
            pb.BaseCommand.RELEASE: self.release,
        }

    def administer(self, frame: Frame) -> None:
        """Answer a request, now or when it is done."""
        asked = frame.command.admin
        if not self._connection.who.administers:
            refusal = pb.CommandAdminResponse(
                request_id=asked.request_id, code=NotAllowedError.code, message=_REFUSAL
            )
            self._respond(refusal)
            return
        response = self._admin.answer_now(self._connection, asked)
        if response is not None:
            self._respond(response)
        else:
            self._connection.spawn(self._administer(asked))

    def claim(self, frame: Frame) -> None:
        """Queue a poll; the node's leases answer."""
        asked = frame.command.claim
        if self._connection.who.administers:
            self._leases.claim(self._connection, asked)
            return
        refusal = pb.CommandClaimUpdate(
            claim_id=asked.claim_id, code=NotAllowedError.code, message=_REFUSAL
        )
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.CLAIM_UPDATE, claim_update=refusal)
        )

    def release(self, frame: Frame) -> None:
        """End a claim, or a part of it."""
        self._leases.release(self._connection, frame.command.release)

    def gone(self) -> None:
        """End all claims: the connection is closed."""
        self._leases.gone(self._connection)
        self._admin.gone(self._connection)

    async def _administer(self, asked: pb.CommandAdmin) -> None:
        self._respond(await self._admin.answer(asked))

    def _respond(self, response: pb.CommandAdminResponse) -> None:
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.ADMIN_RESPONSE, admin_response=response)
        )
