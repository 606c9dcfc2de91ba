"""Consumers on a real store: what is delivered, and what survives restarts and crashes."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.access.permissions import Right
from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS
from router.broker.nats.consumers.deliveries import MESSAGES_PER_YIELD
from router.broker.nats.protocol.authorization import NatsCaller, RequestIdentity
from router.broker.storage import PULSAR_FORMAT, CommittedPosition
from router.broker.topics.maintenance import Maintenance
from router.broker.topics.offsets import GroupOffsets
from router.errors import ForbiddenError, SubscriptionBusyError
from router.model import Message, Principal, TopicName
from router.model.policies import Policies
from router.wire.nats.headers import status_code
from router.wire.nats.jetstream.requests import ConsumerAction
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.serving import (
    CALLER,
    DEADLINE,
    STREAM,
    Inbox,
    Serving,
    answer,
    attempts,
    crash,
    payloads,
    run,
    serving,
)


async def ten(served: Serving, **config: Any) -> None:
    """Make a stream with ten messages in two entries, and a consumer of it."""
    await served.stream()
    await served.publish(*(b"%d" % one for one in range(1, 6)))
    await served.publish(*(b"%d" % one for one in range(6, 11)), subject="s.b")
    await served.consumer("c", **config)


async def test_state_survives_a_restart(tmp_path: Path) -> None:
    before: dict[str, Any] = {}
    async with serving(tmp_path) as served:
        await ten(served, ack_wait=60_000_000_000, description="kept")
        messages = await served.pull("c", 6)
        for message in messages[1:4]:
            await served.acknowledge(message)
        served.say(messages[0], b"-NAK")
        [again] = await served.pull("c", 1)
        assert attempts([again]) == [2]
        before.update(await served.info("c"))
        assert before["delivered"]["consumer_seq"] == 7
        assert before["num_ack_pending"] == 3
    async with serving(tmp_path) as served:
        after = await served.info("c")
        for one in (before, after):
            del one["ts"]
            one["delivered"].pop("last_active", None)
            one["ack_floor"].pop("last_active", None)
        assert after == before
        assert payloads(await served.pull("c")) == [b"7", b"8", b"9", b"10"]


async def test_what_was_read_ahead_is_delivered_within_the_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served)
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=1)  # what is in memory needs no task either
        assert payloads(inbox.messages) == [b"1"]
        served.ask("c", "in", batch=3)
        assert payloads(inbox.messages) == [b"1", b"2", b"3", b"4"]
        # What was refused goes first, and what is deleted does not go at all.
        served.say(inbox.messages[1], b"-NAK")
        await served.call("STREAM.MSG.DELETE.S", seq=5)
        served.ask("c", "in", batch=3)
        assert payloads(await inbox.until(7))[4:] == [b"2", b"6", b"7"]


async def test_a_large_request_goes_on_behind_what_is_delivered_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        await served.publish(*(b"%d" % number for number in range(MESSAGES_PER_YIELD * 3)))
        await served.consumer("c")
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=1)
        await inbox.until(1)
        served.ask("c", "in", batch=MESSAGES_PER_YIELD * 2)
        assert len(inbox.messages) == 1 + MESSAGES_PER_YIELD
        found = payloads(await inbox.until(1 + MESSAGES_PER_YIELD * 2))
        assert found == [b"%d" % number for number in range(len(found))]


async def test_a_message_whose_headers_have_a_status_ends_no_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        await served.consumer("c")
        stored = NatsMessage("s.a", headers=b"NATS/1.0 404 none\r\n\r\n", payload=b"1")
        assert len(await served.request(CALLER, stored, 1, DEADLINE)) == 1
        await served.publish(b"2")
        message = NatsMessage("$JS.API.CONSUMER.MSG.NEXT.S.c", payload=b'{"batch":2}')
        found = await served.request(CALLER, message, 2, DEADLINE)
        assert payloads(found) == [b"1", b"2"]


async def test_acknowledged_messages_do_not_come_again_after_a_crash(tmp_path: Path) -> None:
    """Also if the note lacks that they were delivered: acknowledgements have their own place."""
    async with serving(tmp_path / "a") as served:
        await ten(served)
        messages = await served.pull("c", 8)
        for place in (0, 1, 3, 6):
            await served.acknowledge(messages[place])
        crash(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "b") as served:
        messages = await served.pull("c")
        assert sorted(map(int, payloads(messages))) == [3, 5, 6, 8, 9, 10]
        for message in messages:
            await served.acknowledge(message)
        info = await served.info("c")
        assert info["ack_floor"]["stream_seq"] == 10
        assert (info["num_pending"], info["num_ack_pending"]) == (0, 0)


async def test_pending_messages_come_again_with_their_counts_after_a_crash(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as served:
        await ten(served, ack_wait=300_000_000)
        await served.pull("c", 3)
        served.server.streams.find("S").consumers["c"].log.flush()
        await served.stored()
        crash(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "b") as served:
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=100)
        messages = await inbox.until(10)
        while len(set(payloads(messages))) < 10:  # a slow test gets some of them once more
            messages = await inbox.until(len(messages) + 1)
        counts: dict[int, int] = {}
        for number, attempt in zip(map(int, payloads(messages)), attempts(messages), strict=True):
            counts.setdefault(number, attempt)
        assert counts == {one: 2 if one <= 3 else 1 for one in range(1, 11)}


async def test_acknowledgements_behind_the_note_survive_a_crash(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as served:
        await ten(served)
        messages = await served.pull("c", 5)
        served.server.streams.find("S").consumers["c"].log.flush()
        for place in (1, 3):
            await served.acknowledge(messages[place])
        crash(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "b") as served:
        info = await served.info("c")
        assert (info["num_ack_pending"], info["delivered"]["consumer_seq"]) == (3, 5)
        assert payloads(await served.pull("c")) == [b"6", b"7", b"8", b"9", b"10"]


async def test_acknowledgement_of_all_before_survives_a_crash(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as served:
        await ten(served, ack_policy="all")
        messages = await served.pull("c", 8)
        await served.acknowledge(messages[6])
        crash(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "b") as served:
        assert payloads(await served.pull("c")) == [b"8", b"9", b"10"]


async def test_filters_and_counts_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served, filter_subject="s.b")
        assert (await served.info("c"))["num_pending"] == 5
        assert payloads(await served.pull("c", 2)) == [b"6", b"7"]
        await served.publish(b"11", subject="s.a")
        await served.publish(b"12", subject="s.b")
        assert (await served.info("c"))["num_pending"] == 4
    async with serving(tmp_path) as served:
        assert (await served.info("c"))["num_pending"] == 4
        assert payloads(await served.pull("c")) == [b"8", b"9", b"10", b"12"]


async def test_last_of_each_subject_survives_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served, deliver_policy="last_per_subject", filter_subject="s.>")
        assert (await served.info("c"))["num_pending"] == 2
        assert payloads(await served.pull("c", 1)) == [b"5"]
        await served.publish(b"11", subject="s.a")
    async with serving(tmp_path) as served:
        assert (await served.info("c"))["num_pending"] == 2
        assert payloads(await served.pull("c")) == [b"10", b"11"]


async def test_updates_and_pauses_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served)
        await served.consumer("c", max_deliver=7, filter_subject="s.b")
        until = "2099-01-01T00:00:00Z"
        assert (await served.call("CONSUMER.PAUSE.S.c", pause_until=until))["paused"]
    async with serving(tmp_path) as served:
        info = await served.info("c")
        assert info["config"]["max_deliver"] == 7
        assert info["paused"]
        assert not (await served.call("CONSUMER.PAUSE.S.c"))["paused"]
        assert payloads(await served.pull("c", 1)) == [b"6"]


async def test_consumers_that_are_not_durable_end_with_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served)
        config = {"name": "e", "ack_policy": "explicit"}
        await served.call("CONSUMER.CREATE.S.e", stream_name="S", config=config)
        assert (await served.call("CONSUMER.NAMES.S"))["consumers"] == ["c", "e"]
    async with serving(tmp_path) as served:
        assert (await served.call("CONSUMER.NAMES.S"))["consumers"] == ["c"]


async def test_deleted_consumer_is_gone_after_a_restart_and_its_requests_end(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        await served.consumer("c")
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=1)
        assert (await served.info("c"))["num_waiting"] == 1
        await served.call("CONSUMER.DELETE.S.c")
        [status] = await inbox.until(1)
        assert status.headers.startswith(b"NATS/1.0 409 Consumer Deleted\r\n")
    async with serving(tmp_path) as served:
        assert (await served.info("c"))["error"]["err_code"] == 10014


async def test_filter_that_covered_a_stream_covers_less_of_a_larger_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served, filter_subject="s.>")
        await served.call("STREAM.UPDATE.S", name="S", subjects=["s.>", "t.>"])
        await served.publish(b"other", subject="t.a")
        assert (await served.info("c"))["num_pending"] == 10
        assert len(await served.pull("c")) == 10


async def test_messages_of_interest_wait_for_each_consumer_over_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream(retention="interest")
        await served.consumer("a")
        await served.consumer("b")
        await served.publish(b"1", b"2", b"3")
        for message in await served.pull("a"):
            await served.acknowledge(message)
        [message] = await served.pull("b", 1)
        await served.acknowledge(message)
    async with serving(tmp_path) as served:
        assert (await served.call("STREAM.INFO.S"))["state"]["messages"] == 2
        assert payloads(await served.pull("b")) == [b"2", b"3"]
        assert payloads(await served.pull("a")) == []
        await served.call("CONSUMER.DELETE.S.b")
        assert (await served.call("STREAM.INFO.S"))["state"]["messages"] == 0


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_messages_acknowledged_before_a_crash_leave_the_stream(
    tmp_path: Path, retention: str
) -> None:
    async with serving(tmp_path / "a") as served:
        await served.stream(retention=retention)
        await served.consumer("c")
        await served.publish(*(b"%d" % place for place in range(5)))
        for message in await served.pull("c", 3):
            stream = served.server.streams.find("S")
            stream.acknowledged = lambda sequence: None  # the crash comes before they are deleted
            await served.acknowledge(message)
        crash(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "b") as served:
        assert payloads(await served.pull("c")) == [b"3", b"4"]
        stream = served.server.streams.find("S")
        async with asyncio.timeout(DEADLINE):  # a task of the stream may delete them
            while (await stream.state()).messages != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_an_acknowledgement_that_a_crash_makes_void_has_no_answer(tmp_path: Path) -> None:
    taken: list[NatsMessage] = []
    async with serving(tmp_path / "a") as served:
        await ten(served)
        taken.extend(await served.pull("c", 1))
        crash(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "b") as served:
        await served.info("c")
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        served.hub.publish(NatsMessage(taken[0].reply, "in"), caller=CALLER)
        await served.stored()
        assert not inbox.messages
        again = await served.pull("c", 1)
        assert payloads(again) == payloads(taken)
        assert not status_code((await served.acknowledge(again[0])).headers)


async def test_unreadable_consumer_keeps_messages_of_interest(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream(retention="interest")
        await served.consumer("a")
        partition = served.topics.opened(STREAM)
        assert partition is not None
        record = partition.subscriptions["a"].record
        assert record is not None
        await served.store.change_subscription(record, {**record.properties, "nats.consumer": "?"})
    async with serving(tmp_path) as served:
        for _ in range(2):
            reply = await served.call("STREAM.INFO.S")
            assert "cannot be restored" in reply["error"]["description"]


@pytest.mark.parametrize("foreign", [False, True])
async def test_consumer_of_few_subjects_misses_nothing(tmp_path: Path, foreign: bool) -> None:
    """What comes after a message that is not its own is looked up in the index."""
    async with serving(tmp_path) as served:
        await served.stream()
        await served.consumer("c", filter_subject="s.a")
        stream, inbox = served.server.streams.find("S"), Inbox()
        consumer = stream.consumers["c"]
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=100)
        for turn in range(1, 4):
            await served.publish(b"x", subject="s.b")
            async with asyncio.timeout(10):
                while consumer.state.next_sequence <= stream.log.last_sequence:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            if foreign:
                own = Message(value=bytes(20_000), properties={"Nats-Subject": "s.a"})
                payload = ENTRY_FORMATS[PULSAR_FORMAT].from_messages([own] * 3, 0)
                stream.ledger.append(payload, PULSAR_FORMAT, 3, 1, lambda _: None)
            else:
                await served.publish(b"1", b"2", b"3")
            await inbox.until(3 * turn)


async def test_consumers_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert await served.server.consumers.collect() == []
        await ten(served, max_deliver=2)
        [message] = await served.pull("c", 1)
        await served.acknowledge(message, b"-NAK")
        [message] = await served.pull("c", 1)
        await served.acknowledge(message, b"-NAK")
        await served.pull("c", 3)
        figures = {name: value for name, _, value in await served.server.consumers.collect()}
        assert figures == {
            "router_nats_consumers": 1,
            "router_nats_ack_pending": 3,
            "router_nats_pull_requests": 0,
            "router_nats_deliveries_total": 5,
            "router_nats_redeliveries_total": 1,
            "router_nats_exhausted_total": 1,
        }


async def test_partition_of_several_has_no_consumers(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topics.create(served.topics.parse("jobs"), 2, Policies(), {})
        name = "jobs-partition-1"
        config = {"name": "c", "ack_policy": "explicit"}
        reply = await served.call(f"CONSUMER.CREATE.{name}.c", stream_name=name, config=config)
        assert reply["error"]["err_code"] == 10012


async def test_topic_that_no_client_configured_has_consumers(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topics.create(served.topics.parse("S"), 0, Policies(), {})
        await served.publish(b"1", b"2", b"3", subject="S")
        await served.consumer("c", filter_subject="S")
        [message] = await served.pull("c", 1)
        await served.acknowledge(message)
    async with serving(tmp_path) as served:
        assert (await served.info("c"))["num_pending"] == 2
        assert payloads(await served.pull("c")) == [b"2", b"3"]


async def test_consumer_that_is_not_used_is_kept(tmp_path: Path) -> None:
    """Positions that other dialects only commit go when they are not used for long."""
    async with serving(tmp_path) as served:
        await ten(served)
    async with serving(tmp_path) as served:
        await served.info("c")
        partition = served.topics.opened(STREAM)
        assert partition is not None
        await partition.subscribe("positions", 0, passive=True)
        for name in ("c", "positions"):
            record = partition.subscriptions[name].record
            assert record is not None
            record.last_used_ms = 0
        served.server.topics.live_members.replace(STREAM, "c", ())
        await Maintenance(served.topics).maintain()
        assert list(partition.subscriptions) == ["c"]


def _forget(topic: str, subscription: str | None) -> None:
    del topic, subscription


class Restricted(NatsCaller):
    """A caller with some rights on every topic."""

    def __init__(self, *rights: Right) -> None:
        super().__init__(RequestIdentity(Principal("restricted"), False, None))
        self.unrestricted = False
        self._has = rights

    def may(self, topic: TopicName, right: Right) -> bool:
        del topic
        return right in self._has

    def authorize(self, topic: TopicName, right: Right) -> None:
        if not self.may(topic, right):
            raise ForbiddenError(f"no right to {right.value} {topic}")


async def test_consumers_need_rights_on_the_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served)
        [message] = await served.pull("c", 1)
        api, viewer = served.server.api, Restricted(Right.VIEW)
        for caller, code in ((Restricted(), 10059), (viewer, 10051)):
            reply = await answer(api, caller, "CONSUMER.DELETE.S.c", b"")
            assert reply is not None
            shown = reply.to_json()["error"]
            assert (shown["err_code"], shown["code"]) == (code, 404 if code == 10059 else 403)
        info = await answer(api, viewer, "CONSUMER.INFO.S.c", b"")
        assert info is not None
        assert info.to_json()["name"] == "c"
        served.hub.publish(NatsMessage(message.reply), caller=viewer)
        assert (await served.info("c"))["num_ack_pending"] == 1
        asked = NatsMessage("$JS.API.CONSUMER.MSG.NEXT.S.c")
        [refused] = await served.request(viewer, asked, 1, 5)
        assert refused.headers.startswith(b"NATS/1.0 503")
        served.hub.publish(NatsMessage(message.reply), caller=Restricted(Right.SUBSCRIBE))
        assert (await served.info("c"))["num_ack_pending"] == 0


class HeldDisk(Disk):
    """A disk whose syncs wait while `released` is not set."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.released.set()

    def sync_data(self, descriptor: int) -> None:
        assert self.released.wait(10)
        super().sync_data(descriptor)


async def test_acknowledgement_is_answered_once_it_is_on_disk(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with serving(tmp_path, disk) as served:
        await ten(served)
        [message] = await served.pull("c", 1)
        await served.stored()
        disk.released.clear()
        answer = asyncio.create_task(served.acknowledge(message))
        done, _ = await asyncio.wait((answer,), timeout=0.2)
        assert not done
        disk.released.set()
        assert (await answer).payload == b""


async def test_client_that_cannot_take_more_gets_the_rest_later(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served)
        inbox = Inbox()
        inbox.full = True
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=10)
        async with asyncio.timeout(10):
            await inbox.waited_for.wait()
        assert (await served.info("c"))["num_waiting"] == 1
        assert not inbox.messages
        inbox.drain()
        assert len(await inbox.until(10)) == 10


async def test_each_client_that_could_take_no_more_is_served_when_it_can(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served)
        inboxes = [Inbox(), Inbox()]
        for number, inbox in enumerate(inboxes):
            inbox.full = True
            served.hub.subscribe(f"in{number}", inbox)
            served.ask("c", f"in{number}", batch=2)
        async with asyncio.timeout(10):
            for inbox in inboxes:
                await inbox.waited_for.wait()
        inboxes[1].drain()
        assert len(await inboxes[1].until(2)) == 2
        assert not inboxes[0].messages


@pytest.mark.parametrize(
    ("config", "request_body"),
    [
        ({"inactive_threshold": 1}, {"batch": 1}),
        ({}, {"batch": 1, "expires": 60_000_000_000, "idle_heartbeat": 1}),
        ({"ack_wait": 1, "max_ack_pending": 1}, {"batch": 100_000}),
        ({"backoff": [1, 1], "max_ack_pending": 1}, {"batch": 100_000}),
    ],
)
def test_deadlines_without_length_do_not_keep_the_broker_busy(
    tmp_path: Path, config: dict[str, Any], request_body: dict[str, Any]
) -> None:
    async def test(served: Serving) -> None:
        await served.stream()
        await served.publish(*([b"1"] if "max_ack_pending" in config else []))
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        # One that exists as long as a request waits for it.
        await served.consumer("c", **{**config, "inactive_threshold": 0})
        if "inactive_threshold" in config:
            consumer = served.server.streams.find("S").consumers["c"]
            served.ask("c", "in", **request_body)
            await served.server.consumers.create(
                consumer.stream, replace(consumer.config, **config), ConsumerAction.UPDATE
            )
        else:
            served.ask("c", "in", **request_body)
        consumer = served.server.streams.find("S").consumers["c"]
        fired = 0
        fire = consumer._fire

        def counted() -> None:
            nonlocal fired
            fired += 1
            fire()

        consumer._fire = counted
        await asyncio.sleep(0.2)
        assert 0 < fired <= 25
        assert len(inbox.messages) <= 25

    run(tmp_path, test)


async def test_unacknowledged_messages_stop_and_start_delivery(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served, max_ack_pending=2)
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=10)
        first, _ = await inbox.until(2)
        assert (await served.info("c"))["num_ack_pending"] == 2
        assert len(inbox.messages) == 2
        served.say(first)
        assert payloads(await inbox.until(3)) == [b"1", b"2", b"3"]


async def test_messages_that_are_deleted_are_not_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served, ack_wait=50_000_000)
        await served.pull("c", 3)
        await served.call("STREAM.PURGE.S", seq=9)
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        served.ask("c", "in", batch=2)
        assert payloads(await inbox.until(2)) == [b"9", b"10"]
        for message in inbox.messages:
            await served.acknowledge(message)
        info = await served.info("c")
        assert info["num_ack_pending"] == 0
        assert info["ack_floor"]["stream_seq"] == 10


async def test_purged_messages_are_not_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served, filter_subject="s.b")
        await served.pull("c", 1)
        await served.call("STREAM.PURGE.S", filter="s.b", keep=2)
        assert (await served.info("c"))["num_pending"] == 2
        await served.call("STREAM.PURGE.S")
        assert (await served.info("c"))["num_pending"] == 0
        await served.publish(b"11", subject="s.b")
        assert (await served.info("c"))["num_pending"] == 1
        assert payloads(await served.pull("c")) == [b"11"]


@pytest.mark.parametrize("number", [2, 6])
async def test_messages_that_other_dialects_delete_are_not_counted(
    tmp_path: Path, number: int
) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        await served.consumer("c", filter_subject="s.a")
        for subject in ("s.a", "s.b") * 3:
            await served.publish(b"v", subject=subject)
        ledger = served.server.streams.find("S").ledger
        await served.store.delete_before(ledger, number)
        await served.call("STREAM.INFO.S")
        left = 3 - number // 2
        assert (await served.info("c"))["num_pending"] == left
        assert len(await served.pull("c")) == left
        await served.publish(b"1", b"2")
        assert (await served.info("c"))["num_pending"] == 2
        assert payloads(await served.pull("c")) == [b"1", b"2"]


async def test_other_dialects_are_kept_out_of_the_subscription(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await ten(served)
        await served.topics.create(served.topics.parse("other"), 0, Policies(), {})
    async with serving(tmp_path) as served:
        partition = served.topics.opened(STREAM)
        assert partition is not None
        with pytest.raises(SubscriptionBusyError, match="JetStream consumer"):
            await partition.subscribe("c", 0)
        with pytest.raises(SubscriptionBusyError, match="JetStream consumer"):
            await GroupOffsets(served.topics, _forget).commit(partition, "c", CommittedPosition(9))
        with pytest.raises(SubscriptionBusyError, match="JetStream consumer"):
            await GroupOffsets(served.topics, _forget).delete(partition, "c")
        assert partition.subscriptions["c"].passive
        await partition.subscribe("other", 0)


async def test_work_queue_takes_no_groups_of_other_dialects(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream(retention="workqueue")
        await served.consumer("c")
        await served.publish(b"1", b"2")
        [message] = await served.pull("c", 1)
        await served.acknowledge(message)
        info = await served.call("STREAM.INFO.S")
        assert info["state"]["messages"] == 1
    async with serving(tmp_path) as served:
        await served.info("c")
        partition = served.topics.opened(STREAM)
        assert partition is not None
        with pytest.raises(SubscriptionBusyError, match="work queue"):
            await partition.subscribe("group", 0)


class Lives:
    """A stream and a consumer over several lives of a broker; `done` are acknowledged."""

    def __init__(self, chance: random.Random, base: Path) -> None:
        self.chance = chance
        self.base = base
        self.done: set[int] = set()
        self.published = 0

    async def live(self, folder: Path, number: int) -> Path:
        """Go through one life; return the folder of the next."""
        async with serving(folder) as served:
            if not number:
                await served.stream()
                await served.consumer("c", ack_wait=20_000_000)
            for _ in range(self.chance.randint(1, 4)):
                await self.publish(served, self.chance.randint(0, 4))
                messages = await served.pull("c", self.chance.randint(1, 5))
                # One may be there twice, but none that was acknowledged before.
                assert not self.done & set(map(int, payloads(messages)))
                for message in messages:
                    await self.take(served, message)
            if self.chance.random() < 0.5:
                return crash(folder, self.base / f"{number + 1}")
        return folder

    async def publish(self, served: Serving, count: int) -> None:
        numbers = range(self.published + 1, self.published + count + 1)
        if count:
            await served.publish(*(b"%d" % number for number in numbers))
        self.published += count

    async def take(self, served: Serving, message: NatsMessage) -> None:
        number = int(message.payload)
        what = self.chance.choice([b"", b"+TERM", b"-NAK", b"+WPI", None])
        if what is not None:
            await served.acknowledge(message, what)
        if what in (b"", b"+TERM"):
            self.done.add(number)

    async def end(self, folder: Path) -> None:
        """Receive what is left, and acknowledge it."""
        async with serving(folder) as served:
            inbox = Inbox()
            served.hub.subscribe("in", inbox)
            served.ask("c", "in", batch=1_000)
            missing = set(range(1, self.published + 1)) - self.done
            while missing:
                for message in await inbox.until(len(inbox.messages) + 1):
                    assert int(message.payload) not in self.done
                    missing.discard(int(message.payload))
            for message in list(inbox.messages):
                await served.acknowledge(message)
            info = await served.info("c")
            assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
            assert info["ack_floor"]["stream_seq"] == self.published


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 32))
def test_nothing_is_lost_and_nothing_acknowledged_comes_again(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is published, acknowledged and refused, over restarts and crashes.

    What comes depends on time, so that hypothesis chooses a seed and not each step.
    """
    base, chance = tmp_path_factory.mktemp("law"), random.Random(seed)
    lives = Lives(chance, base)

    async def all_lives() -> None:
        folder = base / "0"
        for number in range(chance.randint(1, 4)):
            folder = await lives.live(folder, number)
        await lives.end(folder)

    asyncio.run(all_lives())
