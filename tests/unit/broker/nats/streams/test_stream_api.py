"""The calls of the API about streams: topics of all dialects, pages, rights, messages."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.broker.nats.protocol.api import JetStreamApi
from router.broker.nats.protocol.hub import Hub, ServiceRequest, Subscriber
from router.broker.nats.streams.api import StreamApi
from router.broker.nats.streams.direct_get import DirectGet
from router.broker.nats.streams.names import kafka_name, stream_name
from router.model import TopicName
from router.wire.nats import headers
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.serving import answer
from tests.unit.broker.nats.streaming import Anyone, Rig, everything, streaming


class Inbox(Subscriber):
    """What was sent to a subject."""

    def __init__(self) -> None:
        self.received: list[NatsMessage] = []

    def deliver(self, message: NatsMessage) -> None:
        self.received.append(message)


class Caller:
    """Somebody who calls the API of a rig."""

    def __init__(self, rig: Rig, *hidden: str) -> None:
        self.rig = rig
        self.who = Anyone(*hidden)
        self.hub = Hub()
        self.api = JetStreamApi(self.hub)
        self.api.add(StreamApi(rig.streams, lambda: (0, 0)).apis())
        self.api.add(DirectGet(rig.streams, self.hub).apis())

    async def call(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the reply of a call, or its error's code alone."""
        text = b"" if body is None else orjson.dumps(body)
        reply = await answer(self.api, self.who, subject, text)
        assert reply is not None
        found = reply.to_json()
        return {"error": found["error"]["err_code"]} if "error" in found else found

    async def direct(self, subject: str, body: dict[str, Any] | None = None) -> list[NatsMessage]:
        """Return the messages that a call is answered with."""
        inbox = Inbox()
        subscription = self.hub.subscribe("_INBOX.1", inbox)
        payload = b"" if body is None else orjson.dumps(body)
        message = NatsMessage(f"$JS.API.{subject}", "_INBOX.1", b"", payload)
        self.api.handle(ServiceRequest(message, self.who))
        while self.api._tasks:
            await asyncio.wait(set(self.api._tasks))
        subscription.unsubscribe()
        return inbox.received


Test = Callable[[Caller], Awaitable[None]]


def with_caller(folder: Path, test: Test, *hidden: str, killed: bool = False) -> None:
    async def run() -> None:
        async with streaming(folder, killed=killed) as rig:
            await test(Caller(rig, *hidden))

    asyncio.run(run())


@pytest.mark.parametrize("name", ["a", "a.b", "a%b", "%2E", "a.b-partition-3", "KV_x"])
def test_the_name_of_a_stream_says_which_topic_it_is(name: str) -> None:
    assert kafka_name(stream_name(name)) == name
    assert not set(stream_name(name)) & set(" .*>/\\")


@pytest.mark.parametrize("name", ["a.b", "%", "%2", "%zz", "%41", "a%2e"])
def test_other_spellings_are_no_names(name: str) -> None:
    assert kafka_name(name) is None


def test_a_topic_of_another_dialect_is_a_stream_of_its_name(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        rig = caller.rig
        await rig.topics.create(TopicName.parse("persistent://public/default/a.b"))
        stream = await rig.streams.open("a%2Eb")
        await rig.append_foreign(stream, "", "elsewhere", value=b"x")
        assert await rig.publish("a.b", b"y") == {"stream": "a%2Eb", "seq": 3}
        messages = await everything(stream)
        assert [(one.subject, one.payload) for one in messages] == [
            ("a.b", b"x"),
            ("a.b", b"x"),
            ("a.b", b"y"),
        ]
        info = await caller.call("STREAM.INFO.a%2Eb", {"subjects_filter": ">"})
        assert info["config"]["subjects"] == ["a.b"]
        assert info["state"]["messages"] == 3
        assert info["state"]["subjects"] == {"a.b": 3}
        fields = {"Nats-Expected-Last-Subject-Sequence": "2"}
        assert (await rig.publish("a.b", b"", fields))["error"] == 10071
        fields = {"Nats-Expected-Last-Subject-Sequence": "3"}
        assert (await rig.publish("a.b", b"", fields))["seq"] == 4
        found = await caller.call("STREAM.MSG.GET.a%2Eb", {"last_by_subj": "a.*"})
        assert found["message"]["seq"] == 4
        assert (await caller.call("STREAM.PURGE.a%2Eb", {"keep": 1}))["purged"] == 3

    with_caller(tmp_path, test)


def test_each_partition_of_a_topic_is_a_stream(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        rig = caller.rig
        name = TopicName.parse("persistent://public/default/t")
        await rig.topics.create(name, 3)
        names = (await caller.call("STREAM.NAMES"))["streams"]
        assert names == ["t-partition-0", "t-partition-1", "t-partition-2"]
        assert rig.streams.for_subject("t") is None
        assert await rig.publish("t-partition-1", b"x") == {"stream": "t-partition-1", "seq": 1}
        found = await caller.call("STREAM.MSG.GET.t-partition-1", {"seq": 1})
        assert b64decode(found["message"]["data"]) == b"x"
        assert await caller.call("STREAM.INFO.t") == {"error": 10059}
        assert await caller.call("STREAM.INFO.t-partition-3") == {"error": 10059}
        assert await caller.call("STREAM.DELETE.t-partition-1") == {"error": 10050}
        config = {"name": "t-partition-1", "subjects": ["x"]}
        assert "error" in await caller.call("STREAM.CREATE.t-partition-1", config)

    with_caller(tmp_path, test)


def test_a_topic_that_a_client_configures_keeps_its_messages(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        rig = caller.rig
        await rig.topics.create(TopicName.parse("persistent://public/default/t"), 1)
        stream = await rig.streams.open("t")
        await rig.append_foreign(stream, "t.a", "")
        config = {"name": "t", "subjects": ["t.>"]}
        assert (await caller.call("STREAM.CREATE.t", config))["did_create"]
        info = await caller.call("STREAM.INFO.t", {"subjects_filter": ">"})
        assert info["state"]["subjects"] == {"t.a": 1, "t.t": 1}
        assert await rig.publish("t.b") == {"stream": "t", "seq": 3}
        assert await caller.call("STREAM.CREATE.t", {**config, "max_msgs": 1}) == {"error": 10058}

    with_caller(tmp_path, test)


def test_a_subject_belongs_to_one_stream(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        await caller.rig.topics.create(TopicName.parse("persistent://public/default/taken"))
        await caller.rig.create("S", "s.>")
        for subject in ("s.a", "s.>", "s.*", "taken"):
            config = {"name": "T", "subjects": [subject]}
            assert await caller.call("STREAM.CREATE.T", config) == {"error": 10065}, subject
        assert caller.rig.topics.find("persistent://public/default/T") is None
        # A topic that comes later is left alone, and the subject still leads to the stream.
        await caller.rig.topics.create(TopicName.parse("persistent://public/default/s.late"))
        assert (await caller.rig.publish("s.late"))["stream"] == "S"
        assert (await caller.call("STREAM.INFO.s%2Elate"))["state"]["messages"] == 0

    with_caller(tmp_path, test)


def test_what_a_caller_may_not_see_is_not_there(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        await caller.rig.create("secret", "secret")
        await caller.rig.create("S", "s")
        assert (await caller.call("STREAM.NAMES"))["streams"] == ["S"]
        assert [one["config"]["name"] for one in (await caller.call("STREAM.LIST"))["streams"]] == [
            "S"
        ]
        assert (await caller.call("INFO"))["streams"] == 1
        for subject, body in (
            ("STREAM.INFO", None),
            ("STREAM.PURGE", None),
            ("STREAM.DELETE", None),
            ("STREAM.MSG.GET", {"seq": 1}),
            ("STREAM.MSG.DELETE", {"seq": 1}),
        ):
            assert await caller.call(f"{subject}.secret", body) == {"error": 10059}

    with_caller(tmp_path, test, "secret")


def test_names_and_lists_come_in_pages(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        for place in range(300):
            await caller.rig.topics.create(
                TopicName.parse(f"persistent://public/default/t{place:03}")
            )
        page = await caller.call("STREAM.LIST", {"offset": 10})
        assert (page["total"], page["offset"], page["limit"]) == (300, 10, 256)
        assert len(page["streams"]) == 256
        page = await caller.call("STREAM.LIST", {"offset": 290})
        assert [one["config"]["name"] for one in page["streams"]] == [
            f"t{place}" for place in range(290, 300)
        ]
        page = await caller.call("STREAM.NAMES", {"subject": "t01*"})
        assert page["streams"] == []
        page = await caller.call("STREAM.NAMES", {"subject": "*", "offset": 999})
        assert (page["total"], page["streams"]) == (300, [])

    with_caller(tmp_path, test)


def test_a_deleted_topic_takes_its_stream_with_it(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        rig = caller.rig
        await rig.create("S", "s.>", max_age=3_600_000_000_000)
        await rig.publish("s.a")
        await rig.topics.delete(TopicName.parse("persistent://public/default/S"))
        assert rig.streams.for_subject("s.a") is None
        assert await caller.call("STREAM.INFO.S") == {"error": 10059}
        stream = await rig.create("S", "other")
        assert (await rig.publish("other")) == {"stream": "S", "seq": 1}
        await stream.settle()

    async def check(caller: Caller) -> None:
        assert (await caller.call("STREAM.INFO.S"))["config"]["subjects"] == ["other"]

    with_caller(tmp_path, test)
    with_caller(tmp_path, check)


def test_direct_get(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        await caller.rig.create("S", "s.>", allow_direct=True)
        for place in range(6):
            await caller.rig.publish(f"s.{place % 3}", b"%d" % place, {"A": "b"})
        (found,) = await caller.direct("DIRECT.GET.S.s.1")
        assert found.payload == b"4"
        assert [name for name, _ in headers.read(found.headers)][:2] == ["A", "Nats-Stream"]
        (found,) = await caller.direct("DIRECT.GET.S", {"seq": 2})
        assert headers.first(found.headers, "Nats-Sequence") == "2"
        (found,) = await caller.direct("DIRECT.GET.S", {"seq": 7})
        assert headers.status_code(found.headers) == 404
        (found,) = await caller.direct("DIRECT.GET.S")
        assert headers.status_code(found.headers) == 408
        batch = await caller.direct("DIRECT.GET.S", {"seq": 2, "batch": 3})
        assert [one.payload for one in batch] == [b"1", b"2", b"3", b""]
        assert headers.status_code(batch[-1].headers) == 204
        assert headers.first(batch[-1].headers, "Nats-Num-Pending") == "2"
        last = await caller.direct("DIRECT.GET.S", {"multi_last": ["s.1", "s.2"]})
        assert [one.payload for one in last] == [b"4", b"5", b""]
        last = await caller.direct("DIRECT.GET.S", {"multi_last": ["s.>"], "up_to_seq": 4})
        assert [one.payload for one in last] == [b"1", b"2", b"3", b""]

    with_caller(tmp_path, test)


def test_a_stream_without_direct_access_has_no_responder(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        await caller.rig.create("S", "s")
        (found,) = await caller.direct("DIRECT.GET.S.s")
        assert headers.status_code(found.headers) == 503

    with_caller(tmp_path, test)


def test_what_no_row_serves_has_no_answer(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        for subject in ("NONE", "STREAM.INFO", "STREAM.INFO.a.b", "STREAM.MSG", ""):
            assert await answer(caller.api, caller.who, subject, b"") is None

    with_caller(tmp_path, test)


@pytest.mark.parametrize("killed", [False, True])
def test_a_stream_begins_at_its_first_sequence_for_each_dialect(
    tmp_path: Path, killed: bool
) -> None:
    first = 1 << 53
    config = {"name": "S", "subjects": ["s.>"], "first_seq": first}

    async def make(caller: Caller) -> None:
        created = await caller.call("STREAM.CREATE.S", config)
        state = created["state"]
        assert (created["config"]["first_seq"], state["messages"]) == (first, 0)
        assert (state["first_seq"], state["last_seq"]) == (first, first - 1)

    async def fill(caller: Caller) -> None:
        rig = caller.rig
        assert (await caller.call("STREAM.INFO.S"))["state"]["first_seq"] == first
        assert await rig.publish("s.a", b"1") == {"stream": "S", "seq": first}
        stream = await rig.streams.open("S")
        assert (stream.ledger.first_entry, stream.ledger.first_number) == (0, first - 1)
        await rig.append_foreign(stream, "s.b", "")

    async def check(caller: Caller) -> None:
        state = (await caller.call("STREAM.INFO.S", {"subjects_filter": ">"}))["state"]
        assert (state["messages"], state["first_seq"]) == (3, first)
        assert (state["last_seq"], state["subjects"]) == (first + 2, {"s.a": 1, "s.b": 1, "s.S": 1})
        found = await caller.call("STREAM.MSG.GET.S", {"seq": first})
        assert found["message"]["seq"] == first
        assert await caller.call("STREAM.MSG.GET.S", {"seq": first - 1}) == {"error": 10037}
        assert (await caller.call("STREAM.PURGE.S"))["purged"] == 3
        state = (await caller.call("STREAM.INFO.S"))["state"]
        assert (state["first_seq"], state["last_seq"]) == (first + 3, first + 2)

    for test in (make, fill, check):
        with_caller(tmp_path, test, killed=killed)


def test_a_first_sequence_is_refused_for_a_topic_that_is_there(tmp_path: Path) -> None:
    async def test(caller: Caller) -> None:
        await caller.rig.topics.create(TopicName.parse("persistent://public/default/t"), 1)
        config = {"name": "t", "subjects": ["t"], "first_seq": 2}
        assert await caller.call("STREAM.CREATE.t", config) == {"error": 10052}
        config = {"name": "u", "subjects": ["u"], "first_seq": (1 << 53) + 1}
        assert await caller.call("STREAM.CREATE.u", config) == {"error": 10052}

    with_caller(tmp_path, test)


def test_a_state_counts_the_messages_up_to_its_last_sequence(tmp_path: Path) -> None:
    async def run() -> None:
        async with streaming(tmp_path) as rig:
            stream = await rig.create("S", "s.>")
            await rig.publish("s.a")
            reply = rig.send("s.b")
            rig.publisher.flush()
            assert stream.log.messages == 2  # the second is not on disk yet
            state = await stream.state()
            assert (state.messages, state.last_seq) == (1, 1)
            await rig.answer(reply)
            state = await stream.state()
            assert (state.messages, state.last_seq) == (2, 2)

    asyncio.run(run())
