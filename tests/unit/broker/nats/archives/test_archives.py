"""STREAM.SNAPSHOT and STREAM.RESTORE on a real store: what is the same, and what is refused."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from router.broker.disk.files import Disk
from router.broker.nats.archives import restores, snapshots
from router.broker.nats.protocol.authorization import NatsCaller, RequestIdentity
from router.broker.nats.streams.log.messages import StoredMessage
from router.model import Principal, TopicName
from router.wire.nats.archive.entries import write_end, write_messages, write_start
from router.wire.nats.archive.parts import ArchivedMessage
from router.wire.nats.archive.s2 import compress
from router.wire.nats.headers import status_code
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.serving import (
    CALLER,
    DEADLINE,
    Inbox,
    Serving,
    attempts,
    crash,
    payloads,
    run,
    serving,
)

ARCHIVES: Final = Path(__file__).parents[4] / "nats" / "archives"
SNAPSHOT: Final = "$JS.API.STREAM.SNAPSHOT."
RESTORE: Final = "$JS.API.STREAM.RESTORE."


async def ask(served: Serving, subject: str, payload: bytes) -> dict[str, Any]:
    """Return the reply to a request, {} if it is empty."""
    [reply] = await served.request(CALLER, NatsMessage(subject, payload=payload), 1, DEADLINE)
    return json.loads(reply.payload) if reply.payload else {"status": status_code(reply.headers)}


class Download:
    """A client that takes a snapshot; `answers`: it answers each chunk."""

    def __init__(self, served: Serving, name: str, *, answers: bool = True) -> None:
        self.reply: dict[str, Any] = {}
        self.chunks: list[NatsMessage] = []
        self._served = served
        self._name = name
        self._answers = answers

    async def begin(self, inbox: Inbox, **request: Any) -> None:
        """Send the request; chunks come to the inbox."""
        body = json.dumps({"deliver_subject": "deliver", **request}).encode()
        self.reply = await ask(self._served, SNAPSHOT + self._name, body)
        self._served.hub.subscribe("deliver", inbox)

    async def run(self, **request: Any) -> tuple[bytes, int]:
        """Return the archive, and the status at its end."""
        inbox = Inbox()
        await self.begin(inbox, **request)
        assert "error" not in self.reply, self.reply
        while (chunk := (await inbox.until(len(self.chunks) + 1))[len(self.chunks)]).payload:
            self.chunks.append(chunk)
            if self._answers and chunk.reply:
                self._served.hub.publish(NatsMessage(chunk.reply), caller=CALLER)
        return b"".join(one.payload for one in self.chunks), status_code(chunk.headers)


async def restored(
    served: Serving, archive: bytes, config: dict[str, Any], first: int = 0, step: int = 64 << 10
) -> dict[str, Any]:
    """Return the last reply to a restore."""
    body = json.dumps({"config": config, "state": {"first_seq": first}}).encode()
    reply = await ask(served, RESTORE + config["name"], body)
    if "error" in reply:
        return reply
    subject = reply["deliver_subject"]
    for at in range(0, len(archive), step):
        reply = await ask(served, subject, archive[at : at + step])
        if "error" in reply:
            return reply
    return await ask(served, subject, b"")


async def everything(served: Serving, name: str) -> list[StoredMessage]:
    """Return all messages of a stream."""
    stream = await served.server.streams.open(name)
    await stream.settle()
    found = stream.log.scan(stream.log.first_sequence, stream.log.last_sequence)
    return [message async for messages in found for message in messages]


async def seen(served: Serving, name: str) -> dict[str, Any]:
    """Return all that clients see of a stream."""
    info = await served.call(f"STREAM.INFO.{name}", deleted_details=True, subjects_filter=">")
    found: dict[str, Any] = {"state": info["state"], "config": info["config"]}
    found["messages"] = [one[:5] for one in await everything(served, name)]
    listed = await served.call(f"CONSUMER.LIST.{name}")
    for one in listed["consumers"]:
        for member in ("ts", "created"):
            del one[member]
        for member in ("delivered", "ack_floor"):
            one[member].pop("last_active", None)
    found["consumers"] = listed["consumers"]
    return found


def unfinished(served: Serving) -> int:
    """Return how many topics the store holds that are not shown."""
    return len(served.store._catalog.topics) - len(served.topics.records())


@pytest.mark.parametrize("version", ["2.14", "2.15"])
async def test_streams_of_real_servers(tmp_path: Path, version: str) -> None:
    def archive(name: str) -> bytes:
        return (ARCHIVES / f"{name}-{version}.s2").read_bytes()

    async with serving(tmp_path) as served:
        config: dict[str, Any] = {"name": "S", "subjects": ["orders.>"]}
        reply = await restored(served, archive("ORDERS"), config, 1, step=1_000)
        assert reply["type"] == "io.nats.jetstream.api.v1.stream_create_response"
        state = reply["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (7, 1, 10)
        bucket = {
            "name": "KV_CONFIG",
            "subjects": ["$KV.CONFIG.>"],
            "max_msgs_per_subject": 2,
            "discard": "new",
            "allow_direct": True,
        }
        reply = await restored(served, archive("KV_CONFIG"), bucket, 2)
        state = reply["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (7, 2, 9)
        empty = {"name": "EMPTY", "subjects": ["empty.>"]}
        state = (await restored(served, archive("EMPTY"), empty, 4))["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 4, 3)
    async with serving(tmp_path) as served:
        await served.publish(b"four", subject="empty.x")
        assert [one.sequence for one in await everything(served, "EMPTY")] == [4]
        info = await served.info("packer")
        assert (info["delivered"]["consumer_seq"], info["delivered"]["stream_seq"]) == (6, 5)
        assert (info["num_ack_pending"], info["num_pending"]) == (3, 3)
        assert info["config"]["max_deliver"] == 9
        # What was pending when the archive was written is overdue.
        messages = await served.pull("packer")
        assert payloads(messages)[-3:] == [b"order 6", b"order 8", b"order 9"]
        found = [one.sequence for one in await everything(served, "S")]
        assert found == [1, 3, 4, 5, 6, 8, 9]


async def some_history(served: Serving, choices: random.Random) -> None:
    """Make the stream `S` with messages, deletions and consumers by chance."""
    await served.stream(max_msgs_per_subject=choices.choice([-1, 2]))
    for number in range(choices.randrange(12)):
        tail = choices.choice(["a", "b.c", "d"])
        await served.publish(
            *(b"%d-%d" % (number, one) for one in range(choices.randrange(1, 9))),
            subject=f"s.{tail}",
        )
        if choices.random() < 0.4:
            last = (await served.call("STREAM.INFO.S"))["state"]["last_seq"]
            await served.call("STREAM.MSG.DELETE.S", seq=choices.randint(1, last))
    if choices.random() < 0.3:
        await served.call("STREAM.PURGE.S", seq=choices.randrange(20))
    for name in choices.choice([[], ["one"], ["one", "two"]]):
        filters = choices.choice([{}, {"filter_subject": "s.a"}])
        await served.consumer(name, ack_wait=3_600_000_000_000, **filters)
        for message in await served.pull(name, choices.randrange(1, 10)):
            if choices.random() < 0.5:
                await served.acknowledge(message)


@pytest.mark.parametrize("seed", range(8))
def test_a_snapshot_that_is_restored_is_the_same_stream(tmp_path: Path, seed: int) -> None:
    choices = random.Random(seed)

    async def test(served: Serving) -> None:
        await some_history(served, choices)
        before = await seen(served, "S")
        archive, code = await Download(served, "S").run(jsck=True, chunk_size=1024)
        assert code == 204
        await served.call("STREAM.DELETE.S")
        reply = await restored(served, archive, before["config"], before["state"]["first_seq"])
        assert "error" not in reply, reply
        assert await seen(served, "S") == before
        assert unfinished(served) == 0

    async def again(served: Serving) -> None:
        """What is pending comes again when its time is over, and not before."""
        for one in (await served.call("CONSUMER.LIST.S"))["consumers"]:
            fresh = await served.pull(one["name"])
            assert set(attempts(fresh)) <= {1}
            assert len(fresh) == one["num_pending"]

    run(tmp_path, test, again)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
async def test_what_consumers_need_is_there_after_a_restore(tmp_path: Path, retention: str) -> None:
    async with serving(tmp_path) as served:
        await served.stream(retention=retention)
        await served.consumer("c", ack_wait=3_600_000_000_000)
        await served.publish(*(b"%d" % number for number in range(1, 10)))
        for message in (await served.pull("c", 6))[1:4]:
            await served.acknowledge(message)
        before = await seen(served, "S")
        assert before["state"]["messages"] == 6
        archive, _ = await Download(served, "S").run()
        await served.call("STREAM.DELETE.S")
        await restored(served, archive, before["config"], 1)
        assert await seen(served, "S") == before
    async with serving(tmp_path) as served:
        assert payloads(await served.pull("c")) == [b"7", b"8", b"9"]
        assert len(await everything(served, "S")) == 6


class SmallDisk(Disk):
    """A disk with so many free bytes."""

    space = 1 << 40

    def free(self, folder: Path) -> int:
        del folder
        return self.space


async def test_a_full_disk_is_named_and_nothing_stays(tmp_path: Path) -> None:
    disk = SmallDisk()
    async with serving(tmp_path, disk) as served:
        body = json.dumps({"config": CONFIG}).encode()
        subject = (await ask(served, f"{RESTORE}R", body))["deliver_subject"]
        changed = asyncio.Event()
        served.store.pressure[changed.set] = None
        disk.space = 0
        async with asyncio.timeout(DEADLINE):
            await changed.wait()
        # What was begun ends, and nothing is begun.
        await ask(served, subject, archive_of(_message(1)))
        assert (await ask(served, subject, b""))["error"]["err_code"] == 10047
        assert unfinished(served) == 0
        assert (await ask(served, f"{RESTORE}R", body))["error"]["err_code"] == 10047


async def test_a_stream_may_begin_far_away_and_have_far_gaps(tmp_path: Path) -> None:
    first, gap = 10**15, 10**7
    async with serving(tmp_path) as served:
        start = write_start({"first_seq": first, "last_seq": first + gap}, 0)
        archive = compress(start + write_messages([_message(first), _message(first + gap)]))
        archive += compress(write_end())
        reply = await restored(served, archive, CONFIG | {"first_seq": first}, first)
        state = reply["state"]
        assert (state["first_seq"], state["last_seq"]) == (first, first + gap)
        assert (state["messages"], state["num_deleted"]) == (2, gap - 1)
        too_far = await restored(served, archive, CONFIG | {"name": "F"}, 1 << 60)
        assert too_far["error"]["err_code"] in {10062, 10065}
    async with serving(tmp_path) as served:
        await served.publish(b"new", subject="r.a")
        found = await everything(served, "R")
        assert [one.sequence for one in found] == [first, first + gap, first + gap + 1]


async def test_topics_of_other_dialects_have_snapshots_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.topics.create(TopicName.parse("plain"))
        stream = await served.server.streams.open("plain")
        await served.publish(b"1", b"2", subject="plain")
        archive, _ = await Download(served, "plain").run()
        config = stream.config.to_json() | {"name": "copied", "subjects": ["copied.>"]}
        state = (await restored(served, archive, config))["state"]
        assert (state["messages"], state["last_seq"]) == (2, 2)


Refusal = Callable[[Serving], Awaitable[dict[str, Any]]]
CONFIG: Final = {"name": "R", "subjects": ["r.>"]}


def _message(sequence: int, subject: str = "r.a", headers: bytes = b"") -> ArchivedMessage:
    return ArchivedMessage(sequence, subject, headers, b"x", 0)


def archive_of(*messages: ArchivedMessage, last: int = 9) -> bytes:
    start = write_start({"first_seq": 1, "last_seq": last}, 0)
    return compress(start + write_messages(messages) + write_end())


@pytest.mark.parametrize(
    ("archive", "code", "sentence"),
    [
        (b"", 10062, "cut short"),
        (b"garbage, and not even compressed", 10062, "not compressed"),
        (archive_of(_message(1))[:-3], 10062, "cut short"),
        (compress(write_start({}, 0) + write_messages([_message(1)])), 10062, "cut short"),
        (archive_of(_message(1, "")), 10062, "no subject"),
        (archive_of(_message(1, "r.*")), 10062, "no subject"),
        (archive_of(_message(1, "r.a", b"HTTP/1.1\r\n\r\n")), 10062, "no headers"),
        (archive_of(_message(1 << 62)), 10062, "too far apart"),
        (archive_of(last=(1 << 64) - 1), 10062, "too far apart"),
    ],
)
async def test_a_restore_that_fails_leaves_nothing(
    tmp_path: Path, archive: bytes, code: int, sentence: str
) -> None:
    async with serving(tmp_path) as served:
        reply = await restored(served, archive, CONFIG)
        assert reply["error"]["err_code"] == code
        assert sentence in reply["error"]["description"]
        assert reply["type"] == "io.nats.jetstream.api.v1.stream_create_response"
        assert (await served.call("STREAM.INFO.R"))["error"]["err_code"] == 10059
        assert served.topics.records() == []
        assert unfinished(served) == 0
        # The name and its subjects are free.
        assert "error" not in await restored(served, archive_of(_message(3)), CONFIG)


def test_what_may_not_be_restored_is_refused_at_once(tmp_path: Path) -> None:
    async def code(served: Serving, **config: Any) -> int:
        body = json.dumps({"config": CONFIG | config}).encode()
        return int((await ask(served, f"{RESTORE}R", body))["error"]["err_code"])

    async def test(served: Serving) -> None:
        await served.stream()
        assert await code(served, subjects=["s.a"]) == 10065
        assert await code(served, name="S") == 10056
        assert await code(served, num_replicas=3) == 10074
        body = json.dumps({"config": {"subjects": ["new"]}}).encode()
        reply = await ask(served, f"{RESTORE}S", body)
        assert reply["type"] == "io.nats.jetstream.api.v1.stream_restore_response"
        assert reply["error"]["err_code"] == 10130
        assert (await ask(served, f"{RESTORE}R", b""))["error"]["err_code"] == 10003
        assert (await ask(served, f"{RESTORE}R", b"{"))["error"]["err_code"] == 10025
        assert (await ask(served, f"{SNAPSHOT}S", b""))["error"]["err_code"] == 10003
        wild = json.dumps({"deliver_subject": "a.*"}).encode()
        assert (await ask(served, f"{SNAPSHOT}S", wild))["error"]["err_code"] == 10015
        assert (await ask(served, f"{SNAPSHOT}none", wild))["error"]["err_code"] == 10059
        assert unfinished(served) == 0

    run(tmp_path, test)


async def test_chunks_are_taken_of_the_client_that_asked_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = json.dumps({"config": CONFIG}).encode()
        subject = (await ask(served, f"{RESTORE}R", body))["deliver_subject"]
        other = NatsCaller(RequestIdentity(Principal("other"), True, None))
        [refused] = await served.request(other, NatsMessage(subject), 1, DEADLINE)
        assert status_code(refused.headers) == 503
        served.hub.publish(NatsMessage(subject, payload=b"no reply"), caller=CALLER)
        reply = await ask(served, subject, b"x")
        assert "no reply subject" in reply["error"]["description"]


async def test_a_name_that_was_taken_meanwhile_is_refused_at_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = json.dumps({"config": CONFIG}).encode()
        subject = (await ask(served, f"{RESTORE}R", body))["deliver_subject"]
        await ask(served, subject, archive_of(_message(1)))
        await served.topics.create(TopicName.parse("R"))
        reply = await ask(served, subject, b"")
        assert reply["error"]["err_code"] == 10130
        assert unfinished(served) == 0
        assert [topic.partitions for topic in served.topics.records()] == [0]
        # It is the topic that it was, not a stream with subjects of its own.
        info = await served.call("STREAM.INFO.R")
        assert (info["config"]["subjects"], info["state"]["messages"]) == (["R"], 0)


async def test_a_kill_in_the_middle_leaves_no_stream(tmp_path: Path) -> None:
    async with serving(tmp_path / "first") as served:
        body = json.dumps({"config": CONFIG}).encode()
        subject = (await ask(served, f"{RESTORE}R", body))["deliver_subject"]
        many = [_message(number) for number in range(1, 5_000)]
        archive = compress(write_start({}, 0) + write_messages(many) + write_end())
        await ask(served, subject, archive)
        await served.stored()
        assert unfinished(served) == 1
        crash(tmp_path / "first", tmp_path / "second")
    async with serving(tmp_path / "second") as served:
        assert unfinished(served) == 0
        assert served.topics.records() == []
        assert (await served.call("STREAM.NAMES"))["streams"] == []
        assert "error" not in await restored(served, archive, CONFIG)
    async with serving(tmp_path / "second") as served:
        assert (await served.call("STREAM.INFO.R"))["state"]["messages"] == 4_999


async def test_a_client_that_sends_no_more_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restores, "IDLE_SECONDS", 0.05)
    async with serving(tmp_path) as served:
        body = json.dumps({"config": CONFIG}).encode()
        subject = (await ask(served, f"{RESTORE}R", body))["deliver_subject"]
        async with asyncio.timeout(DEADLINE):
            while served.server.restores._tasks:
                await asyncio.wait(set(served.server.restores._tasks))
        assert unfinished(served) == 0
        assert (await ask(served, subject, b"late")) == {"status": 503}


async def test_a_client_that_waits_for_no_answer_takes_no_memory(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = json.dumps({"config": CONFIG}).encode()
        subject = (await ask(served, f"{RESTORE}R", body))["deliver_subject"]
        inbox = Inbox()
        served.hub.subscribe("answers", inbox)
        chunk = NatsMessage(subject, "answers", payload=bytes(1 << 20))
        for _ in range(40):
            served.hub.publish(chunk, caller=CALLER)
        assert sum(len(one._waiting) for one in served.server.restores._restores.values()) <= 16
        [answer, *_] = await inbox.until(1)
        assert "more chunks came" in json.loads(answer.payload)["error"]["description"]


async def test_no_more_is_sent_than_the_client_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "ACK_SECONDS", 0.2)
    async with serving(tmp_path) as served:
        await served.stream()
        choices = random.Random(1)
        await served.publish(*(choices.randbytes(1_000) for _ in range(100)))
        download = Download(served, "S", answers=False)
        _, code = await download.run(chunk_size=1024, window_size=10 * 1024)
        assert code == 408
        assert len(download.chunks) == 10
        sizes = {len(one.payload) for one in download.chunks}
        assert sizes == {1024}
        assert [one.reply.split(".")[-2:] for one in download.chunks[:2]] == [
            ["1024", "1"],
            ["1024", "2"],
        ]


async def test_a_snapshot_that_none_receives_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SUBSCRIBE_SECONDS", 0.05)
    async with serving(tmp_path) as served:
        await served.stream()
        body = json.dumps({"deliver_subject": "nowhere"}).encode()
        reply = await ask(served, f"{SNAPSHOT}S", body)
        assert reply["config"]["name"] == "S"
        async with asyncio.timeout(DEADLINE):
            while served.server.snapshots._tasks:
                await asyncio.wait(set(served.server.snapshots._tasks))
