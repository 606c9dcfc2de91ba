"""Streams that leave messages out, as their reader asked for a sample: each is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import Message, Position, Stored
from router.web.streams import Pace
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
    pace, sent, skipped = Pace(rate, clock), list[float](), 0
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

    def behind(stored: Stored) -> str:
        told.append(stored.position)
        return "7"

    notice = pace.notice(behind)
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


def test_end_of_a_sample_says_what_was_skipped_since(sites: Sites) -> None:
    site = sites(stream_max_duration="100ms", consume_from="earliest")
    site.post("/events/t", "a\nb")
    answer = site.client.get("/events/t?stream&sample=1")
    events, _ = parse(answer.data)
    assert [event.kind for event in events] == ["message", "skipped"]


def _value(data: Any) -> object:
    return data["value"] if isinstance(data, dict) else data
