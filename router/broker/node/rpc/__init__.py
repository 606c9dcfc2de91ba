"""The node protocol at the broker: requests come in as protobuf, and go on in terms of the model.

Requests that workers make all the time (tokens, metrics, whether a lease stands) are answered at
once, within the call; the others may wait for a disk or another server. A failure is an answer with
the failure's stable code, so that the client raises what would have been raised here; an ERROR
with one of Pulsar's numbers could not say it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from router.broker.consume import LiveMember, LiveMembers
from router.broker.consume.membership.leases import ClaimRequest, ClaimUpdate, Leases, PollPeer
from router.broker.consume.polls.engine import PollEngine
from router.broker.entries import Transcoder
from router.broker.node.backups import Backups
from router.broker.node.counters import NodeCounters
from router.broker.node.rpc.limited import (
    REFUSAL,
    ClientRights,
    authorize_request,
    limited_answer,
)
from router.broker.node.rpc.nats import NatsRequests, NatsService
from router.broker.node.rpc.polling import OUTCOMES, ClientPolls, PollingConnection
from router.broker.node.rpc.topics import Answer, TopicRequests
from router.broker.storage import StoreError
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.calls import make_call
from router.errors import (
    BadRequestError,
    DiskFullError,
    FencedError,
    NotAllowedError,
    RouterError,
)
from router.model import GroupMembers, Member, PartitionLease
from router.sharing.registry import AsyncRegistry
from router.wire import ProtocolError, node
from router.wire.node import node_pb2 as npb
from router.wire.node.conversions import (
    MEMBERS,
    RECORD,
    from_message_id,
    from_samples,
    to_message_id,
)
from router.wire.pulsar import Frame
from router.wire.pulsar.pulsar_pb2 import BaseCommand

NATS_REQUESTS: Final = ("nats_request", "nats_acknowledge", "cancel_nats_request")
"""Those that a session serves, because they end with it."""
BACKUPS: Final = ("begin_backup", "end_backup")
"""Those that hold something for the session."""
MAX_MEMBERS: Final = 2_000
"""Members of another protocol, and their partitions: an answer has to fit into a frame."""


class NodeRpc:
    """Answers the requests of the node protocol; `NodeSession` decides who may make them.

    `topics` is the administration of the log's topics, None: `refusal` says that there is no log.
    """

    def __init__(
        self,
        leases: Leases,
        registry: AsyncRegistry,
        counters: NodeCounters,
        topics: TopicAdmin | None,
        refusal: str,
        transcoder: Transcoder,
    ) -> None:
        self.leases = leases
        self.counters = counters
        # Set by what starts the broker, once there are streams; None: there are none.
        self.nats: NatsService | None = None
        # Set likewise; None: there is no log.
        self.polls: PollEngine | None = None
        # Set likewise.
        self.backups: Backups | None = None
        # Added likewise: objects whose methods are calls, beside those about topics.
        self.calls: tuple[object, ...] = ()
        self.refusal = refusal
        self._registry = registry
        self._live_members = LiveMembers() if topics is None else topics.live_members
        self._refusal = None if topics is not None else refusal
        self._topics = topics
        self._at_once: Mapping[str, Callable[[Any, Any, npb.CommandAdminResponse], None]] = {
            "confirm": self._confirm,
            "confirm_all": self._confirm_all,
            "take_token": self._take_token,
            "push_metrics": self._push_metrics,
        }
        self._answers: Mapping[str, Answer] = {
            "registry_get": self._registry_get,
            "registry_put": self._registry_put,
            "registry_delete": self._registry_delete,
            "describe_group": self._describe_group,
            "recall": self._recall,
            "get_metrics": self._get_metrics,
            **(TopicRequests(topics, transcoder).answers if topics is not None else {}),
        }

    @property
    def requests(self) -> set[str]:
        """Return the requests that are served, by their fields of CommandAdmin."""
        return {*self._at_once, *self._answers, "registry_list", *NATS_REQUESTS, *BACKUPS}

    def creation(self, topic: str) -> int | None:
        """Return how many partitions a topic would get by being used, None: it would not be made.

        Raises BadNameError, NamespaceNotFoundError, NotAllowedError.
        """
        if self._topics is None:
            raise NotAllowedError(self.refusal)
        return self._topics.topics.creation(self._topics.topics.parse(topic))

    def claim(self, peer: PollPeer, claim_id: int, request: ClaimRequest) -> None:
        """Queue a poll; see `Leases.claim`.

        Raises SubscriptionBusyError besides, if members of another protocol read the subscription.
        """
        self._live_members.check(request.topic, request.subscription)
        self.leases.claim(peer, claim_id, request)

    def answer_now(
        self, peer: object, command: npb.CommandAdmin
    ) -> npb.CommandAdminResponse | None:
        """Answer a request that needs no waiting; None: `answer` does it."""
        name = command.WhichOneof("body")
        answer = self._at_once.get(name) if name is not None else None
        if name is None or answer is None:
            return None
        response = npb.CommandAdminResponse(request_id=command.request_id)
        try:
            answer(peer, getattr(command, name), response)
        except RouterError as failure:
            _fail(response, failure)
        return response

    async def answer(self, peer: object, command: npb.CommandAdmin) -> npb.CommandAdminResponse:
        """Answer a request that may have to wait; a failure is an answer too."""
        response = npb.CommandAdminResponse(request_id=command.request_id)
        try:
            if command.WhichOneof("body") in BACKUPS:
                await self._back_up(peer, command, response)
            else:
                await self._answer(command, response)
        except RouterError as failure:
            _fail(response, failure)
        except StoreError as failure:
            _fail(response, DiskFullError(str(failure)))
        return response

    async def _answer(self, command: npb.CommandAdmin, response: npb.CommandAdminResponse) -> None:
        name = command.WhichOneof("body")
        if name == "registry_list":
            page = await self._registry.list(command.registry_list, command.registry_after)
            response.records.extend(map(RECORD.encode, page))
        elif name == "call" and (
            calls := [one for one in self.calls if hasattr(one, command.call.name)]
        ):
            call = command.call
            response.value = await make_call(calls[0], call.name, call.arguments)
        elif name is not None and (answer := self._answers.get(name)) is not None:
            await answer(getattr(command, name), response)
        elif self._refusal is not None:
            raise NotAllowedError(self._refusal)
        else:
            raise BadRequestError("this broker does not know the request")

    async def _back_up(
        self, peer: object, command: npb.CommandAdmin, response: npb.CommandAdminResponse
    ) -> None:
        if self.backups is None:
            raise NotAllowedError("this broker keeps nothing on disk")
        if command.HasField("end_backup"):
            await self.backups.end(peer, command.end_backup)
            return
        cut = await self.backups.begin(peer)
        response.backup.id = cut.id
        if (journal := cut.journal) is not None:
            response.backup.journal_first = journal.first
            response.backup.journal_last = journal.last
            response.backup.journal_size = journal.size

    def _confirm(
        self, _: object, command: npb.ConfirmLease, _response: npb.CommandAdminResponse
    ) -> None:
        self.leases.confirm(
            command.topic, command.subscription, command.partition, command.generation
        )

    def _confirm_all(
        self, _: object, command: npb.ConfirmLeases, response: npb.CommandAdminResponse
    ) -> None:
        for place, one in enumerate(command.grants):
            try:
                self.leases.confirm(one.topic, one.subscription, one.partition, one.generation)
            except FencedError:
                response.fenced.append(place)

    def _take_token(
        self, _: object, command: npb.TakeToken, response: npb.CommandAdminResponse
    ) -> None:
        wait = self.counters.take_token(
            command.bucket, command.per_minute, command.burst, look_only=command.look_only
        )
        response.token.granted = wait is None
        if wait is not None:
            response.token.retry_after_ms = math.ceil(wait * 1000)

    def _push_metrics(
        self, peer: object, command: npb.PushMetrics, _response: npb.CommandAdminResponse
    ) -> None:
        self.counters.push(peer, from_samples(command.counters), from_samples(command.gauges))

    async def _registry_get(
        self, command: npb.RegistryRef, response: npb.CommandAdminResponse
    ) -> None:
        found = await self._registry.get(command.kind, command.name)
        if found is not None:
            response.records.append(RECORD.encode(found))

    async def _registry_put(
        self, command: npb.RegistryPut, response: npb.CommandAdminResponse
    ) -> None:
        expected = command.expected if command.HasField("expected") else None
        written = await self._registry.put(command.kind, command.name, command.value, expected)
        response.records.append(RECORD.encode(written))

    async def _registry_delete(
        self, command: npb.RegistryRef, response: npb.CommandAdminResponse
    ) -> None:
        response.deleted = await self._registry.delete(command.kind, command.name)

    async def _describe_group(
        self, command: npb.SubscriptionRef, response: npb.CommandAdminResponse
    ) -> None:
        found = await self.leases.members(command.topic, command.subscription)
        live = self._live_members.of(command.topic, command.subscription)
        if live:
            found = _with_members(found, live)
        response.group.CopyFrom(MEMBERS.encode(found))

    async def _recall(self, command: npb.RecallClaims, _response: npb.CommandAdminResponse) -> None:
        one = command.subscription if command.HasField("subscription") else None
        await self.leases.recall(command.topic, one)

    async def _get_metrics(self, command: npb.Nothing, response: npb.CommandAdminResponse) -> None:
        del command
        await self.counters.refresh()
        response.metrics = self.counters.render()


def _with_members(found: GroupMembers, live: Sequence[LiveMember]) -> GroupMembers:
    """Add members of a protocol without consumers, and the partitions that they have."""
    members = tuple(Member(one.id, client=one.client) for one in live[:MAX_MEMBERS])
    leases = tuple(
        PartitionLease(partition, consumer=one.id)
        for one in live[:MAX_MEMBERS]
        for partition in sorted(one.partitions)
    )
    cut = found.cut or len(live) > MAX_MEMBERS or len(leases) > MAX_MEMBERS
    return replace(
        found,
        members=found.members + members,
        leases=found.leases + leases[:MAX_MEMBERS],
        cut=cut,
    )


class NodeClient(PollingConnection, Protocol):
    """A client of the node protocol, as its session uses the connection."""

    @property
    def administers(self) -> bool:
        """Return whether the client may administer the node."""
        ...

    @property
    def rights(self) -> ClientRights:
        """Return what the client may do with topics."""
        ...

    def send(self, command: BaseCommand) -> None:
        """Send a command soon, never waiting."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a request that has to wait."""
        ...


class NodeSession:
    """What one client asks of the node, and may; the leases' Peer."""

    def __init__(self, client: NodeClient, rpc: NodeRpc) -> None:
        self._client = client
        self._rpc = rpc
        self._nats = NatsRequests(self._respond)
        self._polls = ClientPolls(client, rpc.polls, rpc.refusal)

    @property
    def name(self) -> str:
        """Return the client's name for people."""
        return self._client.name

    def handle(self, frame: Frame) -> None:
        """Handle the command that an EXTENSION carries; raise ProtocolError for what is none."""
        command = node.read(frame.command.extension)
        if command.HasField("poll"):
            self._poll(command.poll)
        elif command.HasField("done"):
            self._polls.done(command.done)
        elif command.HasField("claim"):
            self._claim(command.claim)
        elif command.HasField("release"):
            self._release(command.release)
        elif command.HasField("retain"):
            retain = command.retain
            self._rpc.leases.retain(self, retain.claim_id, in_use=retain.in_use)
        elif command.HasField("admin"):
            self._administer(command.admin)
        else:
            raise ProtocolError("a command of the node protocol that brokers do not take")

    def claim_updated(self, claim_id: int, update: ClaimUpdate) -> None:
        """Send an update of a claim."""
        self._client.send(node.extension(claim_update=_update_message(claim_id, update)))

    def close(self) -> None:
        """End all claims; the connection is closed."""
        self._polls.close()
        self._rpc.leases.gone(self)
        self._rpc.counters.gone(self)
        if self._rpc.backups is not None:
            self._rpc.backups.gone(self)
        self._nats.close()

    def _administer(self, command: npb.CommandAdmin) -> None:
        if not self._client.administers:
            self._answer_limited(command)
        elif command.HasField("nats_request"):
            self._nats.begin(self._rpc.nats, command.request_id, command.nats_request)
        elif command.HasField("nats_acknowledge"):
            self._nats.begin(self._rpc.nats, command.request_id, command.nats_acknowledge)
        elif command.HasField("cancel_nats_request"):
            self._nats.cancel(command.cancel_nats_request)
        elif (now := self._rpc.answer_now(self, command)) is not None:
            self._respond(now)
        else:
            self._client.spawn(self._answer(command))

    def _answer_limited(self, command: npb.CommandAdmin) -> None:
        """Answer a client that does not administer the node; see `limited`."""
        try:
            authorize_request(self._client.rights, command, self._rpc.creation)
        except RouterError as failure:
            response = npb.CommandAdminResponse(request_id=command.request_id)
            _fail(response, failure)
            self._respond(response)
        else:
            self._client.spawn(self._answer_visible(command))

    async def _answer_visible(self, command: npb.CommandAdmin) -> None:
        self._respond(
            await limited_answer(
                self._client.rights, command, lambda request: self._rpc.answer(self, request)
            )
        )

    async def _answer(self, command: npb.CommandAdmin) -> None:
        self._respond(await self._rpc.answer(self, command))

    def _respond(self, response: npb.CommandAdminResponse) -> None:
        self._client.send(node.extension(admin_response=response))

    def _poll(self, command: npb.CommandPoll) -> None:
        if self._client.administers:
            self._polls.begin(command)
        else:
            self._polls.refused(command.poll_id, NotAllowedError(REFUSAL))

    def _claim(self, command: npb.CommandClaim) -> None:
        """Queue a poll; the leases answer by `claim_updated`, and a refusal is answered here."""
        try:
            if not self._client.administers:
                raise NotAllowedError(REFUSAL)
            request = ClaimRequest(
                command.topic,
                command.subscription,
                command.consumer,
                command.partitions,
                command.empty_polls_per_minute,
            )
            self._rpc.claim(self, command.claim_id, request)
        except RouterError as failure:
            refusal = npb.CommandClaimUpdate(
                claim_id=command.claim_id, code=failure.code, message=str(failure)
            )
            self._client.send(node.extension(claim_update=refusal))

    def _release(self, command: npb.CommandRelease) -> None:
        if command.partitions:
            generations = command.generations or [0] * len(command.partitions)
            given = dict(zip(command.partitions, generations, strict=False))
            self._rpc.leases.give_up(self, command.claim_id, given)
        else:
            pending = map(from_message_id, command.pending)
            self._rpc.leases.release(self, command.claim_id, OUTCOMES[command.outcome], pending)


def _update_message(claim_id: int, update: ClaimUpdate) -> npb.CommandClaimUpdate:
    message = npb.CommandClaimUpdate(
        claim_id=claim_id,
        withdrawn=sorted(update.withdrawn),
        revoked=sorted(update.revoked),
        limited_ms=update.limited_ms,
        unavailable_reason=update.unavailable_reason,
        holder=update.holder,
        waiting=update.waiting or None,
        recalled=update.recalled or None,
    )
    for grant in update.granted.values():
        pending = None if grant.pending is None else to_message_id(grant.pending)
        message.granted.add(partition=grant.partition, generation=grant.generation, pending=pending)
    return message


def _fail(response: npb.CommandAdminResponse, failure: RouterError) -> None:
    response.code, response.message = failure.code, str(failure)
