"""Acknowledgements of one request: they leave a consumer as so many requests do, and are durable.

The slow reference is what NATS clients do: a message to the subject of each acknowledgement.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.access.permissions import Right
from router.broker.nats.consumers.consumer import JetStreamConsumer
from router.broker.storage import Ack, SubscriptionRecord
from router.errors import BackendUnavailableError, SubscriptionNotFoundError
from router.model import Principal
from router.wire.nats.headers import status_code
from router.wire.nats.message import AckResult, NatsMessage
from tests.unit.broker.nats.consumers.test_consumers import Restricted
from tests.unit.broker.nats.serving import CALLER, Serving, crash, payloads, run, serving

MESSAGES = 5
KINDS = (b"", b"+ACK", b"-NAK", b'-NAK {"delay": 9000000000}', b"+TERM", b"+TERM why", b"+WPI")
UNDELIVERED = "$JS.ACK.S.{consumer}.1.99.99.1700000000000000000.0"
DELETED = "$JS.ACK.S.gone.1.1.1.1700000000000000000.0"


class Post(NamedTuple):
    """One request: what it says, and of which tokens, by their numbers."""

    payload: bytes
    tokens: list[int]


# Of each message the first and the last delivery; then a message that was not delivered, and a
# consumer that is deleted.
POSTS = st.lists(
    st.builds(
        Post,
        st.sampled_from(KINDS),
        st.lists(st.integers(0, 2 * MESSAGES) | st.just(2 * MESSAGES + 1), min_size=1, max_size=8),
    ),
    max_size=4,
)


async def acknowledge(served: Serving, tokens: Iterable[str], payload: bytes) -> AckResult:
    """Acknowledge in one request."""
    return await served.server.acknowledge_for(Principal("test"), list(tokens), payload)


async def one_by_one(served: Serving, tokens: Iterable[str], payload: bytes) -> int:
    """Acknowledge by a message each, up to the first that fails; return how many did not."""
    for done, token in enumerate(tokens):
        request = NatsMessage(token, payload=payload)
        undelivered = ".99.99." in token
        replies = await served.request(CALLER, request, 1, 0.001 if undelivered else 5.0)
        if not replies or status_code(replies[0].headers):
            return done
    return len(list(tokens))


def synced(served: Serving) -> float:
    """Return how often the journal was synced."""
    return next(
        value for name, _, value in served.store.sync_samples() if name.endswith("seconds_count")
    )


def standing(consumer: JetStreamConsumer) -> Any:
    """Return where a consumer stands, but for the times at which messages are due again."""
    state = consumer.state
    pending = [(one.sequence, one.consumer_sequence, one.attempts) for one in state.deliveries()]
    waiting = [one.sequence for one in state.deliveries() if one.deadline_ns is not None]
    return pending, waiting, state.floor, state.delivered, state.num_queued, state.exhausted


@settings(max_examples=25, deadline=None)
@given(posts=POSTS, policy=st.sampled_from(["explicit", "all"]), again=st.booleans())
def test_one_request_leaves_the_consumer_as_many_do(
    posts: list[Post], policy: str, again: bool
) -> None:
    async def test(served: Serving) -> None:
        await served.stream()
        await served.publish(*(b"%d" % number for number in range(MESSAGES)))
        stream = served.server.streams.find("S")
        tokens: dict[str, list[str]] = {}
        for name in ("one", "many"):
            await served.consumer(name, ack_policy=policy, max_deliver=3)
            first = [message.reply for message in await served.pull(name)]
            last = first
            if again:
                assert (await acknowledge(served, first, b"-NAK")).failure is None
                last = [message.reply for message in await served.pull(name)]
            tokens[name] = [*first, *last, UNDELIVERED.format(consumer=name), DELETED]
        one, many = stream.consumers["one"], stream.consumers["many"]
        for post in posts:
            chosen = {name: [found[at] for at in post.tokens] for name, found in tokens.items()}
            result = await acknowledge(served, chosen["many"], post.payload)
            assert result.done == await one_by_one(served, chosen["one"], post.payload)
            assert (result.failure is None) == (result.done == len(post.tokens))
            assert standing(many) == standing(one)

    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with serving(Path(folder)) as served:
                await test(served)

    asyncio.run(play())


async def test_what_was_taken_before_a_failure_survives_a_crash(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as served:
        await served.stream()
        await served.consumer("c", ack_wait=50_000_000)
        await served.publish(b"1", b"2", b"3")
        tokens = [message.reply for message in await served.pull("c")]
        result = await acknowledge(served, [*tokens[:2], DELETED, tokens[2]], b"+ACK")
        crash(tmp_path / "a", tmp_path / "b")
        assert result.done == 2
        assert isinstance(result.failure, SubscriptionNotFoundError)
    async with serving(tmp_path / "b") as served:
        inbox = await served.pull("c", expires=5_000_000_000, no_wait=False, batch=1)
        assert payloads(inbox) == [b"3"]


async def test_the_acknowledgements_of_a_request_share_a_sync(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        for number in range(100):
            await served.publish(b"%d" % number)
        await served.consumer("c")
        await served.consumer("d")
        tokens = [message.reply for name in "cd" for message in await served.pull(name)]
        before = synced(served)
        assert await acknowledge(served, tokens, b"+ACK") == AckResult(200)
        assert synced(served) - before <= 2


ENTRIES = 12
BATCHES = st.lists(st.lists(st.integers(0, ENTRIES - 1), max_size=ENTRIES), max_size=5)


@settings(max_examples=25, deadline=None)
@given(batches=BATCHES)
def test_the_cursor_has_what_was_acknowledged_and_nothing_else(batches: list[list[int]]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with serving(Path(folder)) as served:
                await test(served)

    async def test(served: Serving) -> None:
        await served.stream()
        for number in range(ENTRIES):
            await served.publish(b"%d" % number)
        await served.consumer("c")
        tokens = [message.reply for message in await served.pull("c")]
        record = served.server.streams.find("S").partition.subscriptions["c"].record
        assert record is not None
        model: set[int] = set()
        for batch in batches:
            await acknowledge(served, [tokens[at] for at in batch], b"+ACK")
            model |= set(batch)
            assert {at for at in range(ENTRIES) if record.cursor.is_acked(at)} == model

    asyncio.run(play())


async def test_entries_that_follow_one_another_are_acknowledged_by_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[Ack] = []
    async with serving(tmp_path) as served:
        await served.stream()
        for number in range(10):
            await served.publish(b"%d" % number)
        await served.consumer("c")
        tokens = [message.reply for message in await served.pull("c")]
        log = served.server.streams.find("S").consumers["c"].log
        log.flush()
        store_ack = served.store.acknowledge

        def note(record: SubscriptionRecord, ack: Ack) -> None:
            noted.append(ack)
            store_ack(record, ack)

        monkeypatch.setattr(served.store, "acknowledge", note)
        await acknowledge(served, [tokens[at] for at in (2, 0, 1, 5, 7)], b"+ACK")
        assert noted[:3] == [Ack(2, cumulative=True), Ack(5), Ack(7)]


async def test_a_stream_is_opened_for_an_acknowledgement(tmp_path: Path) -> None:
    tokens: list[str] = []
    async with serving(tmp_path) as served:
        await served.stream()
        await served.consumer("c")
        await served.publish(b"1", b"2")
        tokens.extend(message.reply for message in await served.pull("c"))
    async with serving(tmp_path) as served:
        assert await acknowledge(served, tokens, b"+ACK") == AckResult(2)
        assert (await served.info("c"))["num_ack_pending"] == 0


def test_a_stream_that_cannot_be_opened_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise OSError("no disk")

    async def test(served: Serving) -> None:
        await served.stream()
        stream = served.server.streams.find("S")
        monkeypatch.setattr(stream, "opened", False)
        monkeypatch.setattr(stream, "open", fail)
        done, failure = await acknowledge(served, [DELETED], b"+ACK")
        assert (done, type(failure)) == (0, BackendUnavailableError)

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("rights", "code"),
    [
        ((), "subscription-not-found"),
        ((Right.SUBSCRIBE,), "subscription-not-found"),
        ((Right.VIEW,), "forbidden"),
        ((Right.VIEW, Right.SUBSCRIBE), None),
    ],
)
async def test_each_stream_needs_the_right_to_read_it(
    tmp_path: Path, rights: tuple[Right, ...], code: str | None
) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        await served.consumer("c")
        await served.publish(b"1")
        (message,) = await served.pull("c")
        answers = served.server.consumers.services
        done, failure = await answers.acknowledge(Restricted(*rights), [message.reply], b"+ACK")
        assert (done, getattr(failure, "code", None)) == (code is None, code)
        assert (await served.info("c"))["num_ack_pending"] == (code is not None)
