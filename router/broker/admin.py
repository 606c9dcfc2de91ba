"""Administration: what CommandAdmin asks for, answered from counters, leases, registry and topics.

Requests that workers make all the time (tokens, metrics, whether a lease stands) are answered at
once, within the call; the others may wait for a disk or another server. A failure is an answer with
the failure's stable code, so that the front raises what would have been raised here; ERROR with one
of Pulsar's numbers could not say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from router.broker.ledger import StoreError
from router.coordination import Record, Registry
from router.errors import DiskFullError, RouterError
from router.wire.pulsar import pulsar_pb2 as pb


class Counting(Protocol):
    """The node's counters, as administration uses them."""

    def inc(self, name: str, labels: tuple[tuple[str, str], ...] = (), value: float = 1) -> None:
        """Add to a counter."""
        ...

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Have a gauge read whenever metrics are shown."""
        ...

    def push(self, peer: object, pushed: pb.PushMetrics) -> None:
        """Add what a worker counted."""
        ...

    def gone(self, peer: object) -> None:
        """Forget a worker's gauges."""
        ...

    def take_token(self, asked: pb.TakeToken) -> pb.TokenAnswer:
        """Take one token of a bucket."""
        ...

    async def refresh(self) -> None:
        """Collect what may take a moment."""
        ...

    def render(self) -> str:
        """Return everything in the Prometheus text format."""
        ...


class Confirming(Protocol):
    """The node's leases, as administration uses them."""

    def confirm(self, topic: str, subscription: str, partition: int, generation: int) -> None:
        """Return if a grant is the newest and its lease certainly stands; raise RouterError."""
        ...

    async def members(self, topic: str, subscription: str) -> pb.GroupMembers:
        """Return who polls a group and who holds its partitions."""
        ...


class TopicRequests(Protocol):
    """Answers what is asked about topics; see topic_admin.py."""

    async def answer(self, asked: pb.CommandAdmin, response: pb.CommandAdminResponse) -> None:
        """Fill in the response; raise RouterError, StoreError."""
        ...

    def count(self) -> None:
        """Hand the counters what grew since they were shown last."""
        ...


class Admin:
    """Answers administration's requests; who may ask is decided before."""

    def __init__(
        self,
        topics: TopicRequests,
        registry: Registry,
        counters: Counting,
        leases: Confirming,
    ) -> None:
        self._topics = topics
        self._registry = registry
        self._counters = counters
        self._leases = leases
        self.watch = counters.watch

    def answer_now(self, peer: object, asked: pb.CommandAdmin) -> pb.CommandAdminResponse | None:
        """Answer what needs no waiting; None: `answer` does it."""
        response = pb.CommandAdminResponse(request_id=asked.request_id)
        if asked.HasField("confirm"):
            self._confirm(asked.confirm, response)
        elif asked.HasField("take_token"):
            response.token.CopyFrom(self._counters.take_token(asked.take_token))
        elif asked.HasField("push_metrics"):
            self._counters.push(peer, asked.push_metrics)
        else:
            return None
        return response

    async def answer(self, asked: pb.CommandAdmin) -> pb.CommandAdminResponse:
        """Answer a request that may have to wait; a failure is an answer too."""
        response = pb.CommandAdminResponse(request_id=asked.request_id)
        try:
            await self._answer(asked, response)
        except RouterError as failure:
            _fail(response, failure)
        except StoreError as failure:
            _fail(response, DiskFullError(str(failure)))
        return response

    def gone(self, peer: object) -> None:
        """Forget what a worker's connection told of itself."""
        self._counters.gone(peer)

    def _confirm(self, asked: pb.ConfirmLease, response: pb.CommandAdminResponse) -> None:
        try:
            self._leases.confirm(asked.topic, asked.subscription, asked.partition, asked.generation)
        except RouterError as failure:
            _fail(response, failure)

    async def _answer(self, asked: pb.CommandAdmin, response: pb.CommandAdminResponse) -> None:
        registry = self._registry
        if asked.HasField("registry_get"):
            found = await registry.get(asked.registry_get.kind, asked.registry_get.name)
            response.records.extend(_records([] if found is None else [found]))
        elif asked.HasField("registry_put"):
            put = asked.registry_put
            expected = put.expected if put.HasField("expected") else None
            written = await registry.put(put.kind, put.name, put.value, expected)
            response.records.extend(_records([written]))
        elif asked.HasField("registry_delete"):
            gone = asked.registry_delete
            response.deleted = await registry.delete(gone.kind, gone.name)
        elif asked.HasField("registry_list"):
            page = await registry.list(asked.registry_list, asked.registry_after)
            response.records.extend(_records(page))
        elif asked.HasField("describe_group"):
            group = asked.describe_group
            response.group.CopyFrom(await self._leases.members(group.topic, group.subscription))
        elif asked.HasField("get_metrics"):
            self._topics.count()
            await self._counters.refresh()
            response.metrics = self._counters.render()
        else:
            await self._topics.answer(asked, response)


def _records(records: Iterable[Record]) -> list[pb.RegistryRecord]:
    return [pb.RegistryRecord(name=r.name, value=r.value, version=r.version) for r in records]


def _fail(response: pb.CommandAdminResponse, failure: RouterError) -> None:
    response.code, response.message = failure.code, str(failure)
