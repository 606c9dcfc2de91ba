"""The node protocol at the broker: every request has an answer, and a failure is one too."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import cast

import pytest

from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.node.rpc import NodeRpc, NodeSession
from router.broker.storage import Store, StoreOptions
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.topics import TopicOptions, Topics
from router.sharing.registry import AsyncRegistry
from router.wire import ProtocolError, node
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import Frame
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.consume.membership.leasing import TOPIC, Node, Worker, rpc_of


@pytest.fixture
def rpc() -> NodeRpc:
    parts = Node()
    return rpc_of(parts.leases, parts.counters)


def answered(rpc: NodeRpc, **request: object) -> npb.CommandAdminResponse:
    asked = npb.CommandAdmin(request_id=7, **request)  # type: ignore[arg-type] # any request
    response = rpc.answer_now("w", asked) or asyncio.run(rpc.answer("w", asked))
    assert response.request_id == 7
    return response


def test_every_request_of_the_protocol_has_an_answer(folder: Path) -> None:
    async def served() -> set[str]:
        store = await Store.open(folder, StoreOptions(), time.monotonic)
        topics = Topics(store, TopicOptions(), time.monotonic, ENTRY_FORMATS)
        parts = Node()
        admin = TopicAdmin(topics, parts.counters, parts.leases)
        registry = cast(AsyncRegistry, None)
        rpc = NodeRpc(parts.leases, registry, parts.counters, admin, "", Transcoder(ENTRY_FORMATS))
        await store.close()
        return rpc.requests

    body = npb.CommandAdmin.DESCRIPTOR.oneofs_by_name["body"]
    assert asyncio.run(served()) == {field.name for field in body.fields}


def test_requests_about_topics_are_refused_where_there_is_no_log(rpc: NodeRpc) -> None:
    refused = answered(rpc, list_topics=npb.ListTopics())
    assert (refused.code, refused.message) == ("not-allowed", "no topics")


def test_tokens_are_granted_and_refused_at_once(rpc: NodeRpc) -> None:
    take = npb.TakeToken(bucket="b", per_minute=60, burst=1)
    assert answered(rpc, take_token=take).token.granted
    token = answered(rpc, take_token=take).token
    assert (token.granted, token.retry_after_ms) == (False, 1_000)


def test_a_grant_that_does_not_stand_is_answered_with_its_code(rpc: NodeRpc) -> None:
    asked = npb.ConfirmLease(topic=TOPIC, subscription="g", partition=-1, generation=1)
    assert answered(rpc, confirm=asked).code == "fenced"


def test_what_a_worker_counted_is_shown_until_it_goes(rpc: NodeRpc) -> None:
    gauge = npb.Sample(name="router_polls_waiting", value=3)
    answered(rpc, push_metrics=npb.PushMetrics(gauges=[gauge]))
    assert "router_polls_waiting 3.0" in answered(rpc, get_metrics=npb.Nothing()).metrics
    rpc.counters.gone("w")
    assert "router_polls_waiting 3.0" not in answered(rpc, get_metrics=npb.Nothing()).metrics


def test_a_command_that_only_brokers_send_breaks_the_protocol(rpc: NodeRpc) -> None:
    session = NodeSession(Worker(), rpc)
    answer = npb.CommandAdminResponse(request_id=1)
    with pytest.raises(ProtocolError):
        session.handle(Frame(node.extension(admin_response=answer), b""))
    with pytest.raises(ProtocolError):
        session.handle(Frame(pb.BaseCommand(type=pb.BaseCommand.EXTENSION, extension=b"\xff"), b""))
