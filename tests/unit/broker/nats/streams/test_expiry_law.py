"""A law: a stream holds what a plain list of messages with deadlines does, through stops and kills.

Of the messages whose time is over, in their order, the last one of a subject gets a marker, unless
it is one itself.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.nats import headers
from tests.unit.broker.nats.streaming import Clock, Rig, check_index, everything
from tests.unit.broker.nats.streams.test_publishing import ok, with_streams

SECOND: Final = 1_000_000_000
NEVER: Final = 1 << 60


@dataclass(frozen=True)
class Session:
    """What happens between two starts: publishes (subject, seconds to live), and steps of time."""

    steps: list[tuple[str, int] | int]
    killed: bool
    down_seconds: int


@dataclass(frozen=True)
class Held:
    """A message of the model."""

    sequence: int
    subject: str
    ends: float
    is_marker: bool = False


@dataclass
class Model:
    """The messages of a stream; `marker_seconds` 0: it makes no markers."""

    marker_seconds: int
    most: int
    last: int = 0
    messages: list[Held] = field(default_factory=list)

    def publish(self, subject: str, seconds: int, now: float) -> None:
        self.last += 1
        if seconds > 0 and self.most != 1:
            seconds = max(seconds, self.marker_seconds)
        ends = now + seconds if seconds else NEVER
        self._add(Held(self.last, subject, ends))

    def expire(self, now: float) -> None:
        due = [one for one in self.messages if one.ends <= now]
        counts = Counter(one.subject for one in self.messages)
        marked = []
        for one in due:
            if self.marker_seconds and counts[one.subject] == 1 and not one.is_marker:
                marked.append(one.subject)
            counts[one.subject] -= 1
        self.messages = [one for one in self.messages if one.ends > now]
        for subject in marked:
            self.last += 1
            self._add(Held(self.last, subject, now + self.marker_seconds, is_marker=True))

    def _add(self, message: Held) -> None:
        same = [one for one in self.messages if one.subject == message.subject]
        if len(same) >= self.most:
            self.messages.remove(same[0])
        self.messages.append(message)


PUBLISHES = st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1, 1, 2, 3]))
SESSIONS = st.builds(
    Session,
    st.lists(PUBLISHES | st.integers(1, 3), max_size=8),
    st.booleans(),
    st.integers(0, 3),
)


@pytest.mark.no_cover
@settings(max_examples=25, deadline=None)
@given(
    sessions=st.lists(SESSIONS, min_size=1, max_size=4),
    marker_seconds=st.integers(0, 2),
    most=st.sampled_from([1, 2, 9]),
)
def test_a_stream_holds_what_the_model_does(
    sessions: list[Session], marker_seconds: int, most: int
) -> None:
    clock, model = Clock(), Model(marker_seconds, most)
    config: dict[str, Any] = {"allow_msg_ttl": True, "max_msgs_per_subject": most}
    config["subject_delete_marker_ttl"] = marker_seconds * SECOND

    async def compare(rig: Rig) -> None:
        stream = await rig.streams.open("S")
        await stream.settle()
        model.expire(clock.now)
        await check_index(stream)
        found = [
            (
                one.sequence,
                one.subject[2:],
                headers.first(one.headers, "Nats-Marker-Reason") is not None,
            )
            for one in await everything(stream)
        ]
        assert found == [(one.sequence, one.subject, one.is_marker) for one in model.messages]
        assert stream.log.last_sequence == model.last

    async def play(rig: Rig, steps: list[tuple[str, int] | int]) -> None:
        await rig.create("S", "s.>", **config)
        await compare(rig)
        for step in steps:
            if isinstance(step, int):
                clock.now += step
            else:
                subject, seconds = step
                fields = {"Nats-TTL": f"{seconds}s"} if seconds else None
                model.publish(subject, seconds, clock.now)
                assert await rig.publish(f"s.{subject}", b"", fields) == ok(model.last)
            await compare(rig)

    with tempfile.TemporaryDirectory() as folder:
        for session in sessions:

            async def test(rig: Rig, steps: list[tuple[str, int] | int] = session.steps) -> None:
                await play(rig, steps)

            with_streams(Path(folder), test, clock=clock, killed=session.killed)
            clock.now += session.down_seconds
