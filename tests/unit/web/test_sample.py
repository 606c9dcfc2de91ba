"""Streams that leave messages out, as their reader asked for a sample: each is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import RouterError
from router.model import Message, Position, Stored
from router.web import offload
from router.web.streams import EventFormat, EventStream, StreamPace
from tests.processes import ManualClock
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.events import parse

Sites = Callable[..., Site]
PATHS = ("/events/t?stream", "/topics/public/default/t/messages?stream&start=earliest")


@given(
    rate=st.integers(1, 5), steps=st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]), max_size=60)
)
def test_no_second_has_more_messages_than_the_rate_and_none_goes_uncounted(
    rate: int, steps: list[float]
) -> None:
    clock = ManualClock()
    pace, sent, skipped = StreamPace(rate, clock), list[float](), 0
    for step in steps:
        clock.advance(step)
        if pace.passes():
            sent.append(clock())
        else:
            pace.skip(Stored(Message(b""), Position(1, skipped, skipped % 3), 0))
            skipped += 1
    assert skipped + len(sent) == len(steps)
    # A window begins with a message: any second touches two windows at most.
    for begin in sent:
        assert sum(begin <= moment < begin + 1 for moment in sent) <= 2 * rate
    told: list[Position] = []

    def after(stored: Stored) -> str:
        told.append(stored.position)
        return "7"

    notice = pace.notice(after)
    assert notice == (b"id: 7\nevent: skipped\ndata: %d\n\n" % skipped if skipped else b"")
    # Where reading goes on needs the last of each partition, and no other.
    assert sorted(position.entry for position in told) == list(range(skipped))[-3:]
    assert pace.notice(str) == b""


@pytest.mark.parametrize("path", PATHS)
def test_sample_says_how_many_it_skipped_and_goes_on_behind_them(sites: Sites, path: str) -> None:
    site = sites(stream_heartbeat="50ms", consume_from="earliest")
    site.post("/events/t", "\n".join("abcdefghij"))
    answer = site.client.get(f"{path}&sample=3")
    found, pieces = b"", iter(answer.iter_encoded())
    while b"skipped" not in found:
        found += next(pieces)
    answer.close()
    events, last = parse(found)
    assert [(event.kind, _value(event.data)) for event in events] == [
        ("message", "a"),
        ("message", "b"),
        ("message", "c"),
        ("skipped", 7),
    ]
    site.post("/events/t", "k")
    answer = site.client.get(path, headers={"Last-Event-ID": last})
    found, pieces = b"", iter(answer.iter_encoded())
    while not parse(found)[0]:
        found += next(pieces)
    answer.close()
    assert [_value(event.data) for event in parse(found)[0]] == ["k"]


class _Source:
    """Messages as they come, a second after one another."""

    def __init__(self, clock: ManualClock, pieces: list[str]) -> None:
        self._clock = clock
        self._pieces = pieces

    def __iter__(self) -> Iterator[list[Stored]]:
        for number, piece in enumerate(self._pieces):
            yield [
                Stored(Message(value.encode()), Position(number, entry), 0)
                for entry, value in enumerate(piece)
            ]
            self._clock.advance(1)

    def close(self) -> None:
        """End."""


class _Entries:
    """The entries of messages as the ids of their events."""

    def begin(self) -> None:
        """Return nothing."""

    def after(self, stored: Stored) -> str:
        return f"{stored.position.ledger}.{stored.position.entry}"


def _value_line(stored: Stored) -> bytes:
    return orjson.dumps(stored.message.value.decode())


def _no_failure(error: RouterError) -> bytes:
    raise error


PLAIN = EventFormat(_Entries(), _value_line, _no_failure)


def test_skipped_are_told_before_the_next_message_with_a_comment_and_at_the_end() -> None:
    clock = ManualClock()
    source = _Source(clock, ["abc", "d", "ef", "", "gh"])
    watch = offload.Watch(None, lambda: None)
    stream = b"".join(EventStream(source, PLAIN, watch, 1.0, StreamPace(1, clock)))
    assert [(event.id, event.data) for event in parse(stream)[0]] == [
        ("0.0", "a"),
        ("0.2", 2),
        ("1.0", "d"),
        ("2.0", "e"),
        ("2.1", 1),
        ("4.0", "g"),
        ("4.1", 1),
    ]


def _value(data: Any) -> object:
    return data["value"] if isinstance(data, dict) else data
