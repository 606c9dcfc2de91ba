"""Server-sent events: a partition's, a topic's, a consumer's, and DMaaP's."""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.errors import BadRequestError, NotAllowedError, ReadFailedError
from router.model import NOT_PARTITIONED, Position, TopicName
from router.services.consume import ConnectedClient, PollMailbox
from router.services.read import ReadBounds, ReadOptions, TopicReader
from router.services.topic_metadata import TopicMetadataCache
from router.web.pulsar_rest.ids import MAX_MARKS
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.conftest import make_topic
from tests.unit.web.pulsar_rest.events import parse, take
from tests.unit.web.pulsar_rest.rest import Rest, told

Topics = Callable[..., tuple[Site, Rest]]
PARTITION = "/partitions/0/messages?stream"
_numbers = itertools.count(1)


def values(stream: bytes) -> list[Any]:
    return [event.data["value"] for event in parse(stream)[0]]  # type: ignore[index] # JSON


def streamed(rest: Rest, path: str, begun: Semaphore) -> bytes:
    """Read a stream to its end, and tell when its first event is here."""
    pieces, found = iter(opened(rest, path).iter_encoded()), b""
    while not values(found):
        found += next(pieces)
    begun.release()
    return found + b"".join(pieces)


def opened(rest: Rest, path: str, **headers: str) -> Any:
    return rest.client.get(path if path.startswith("/events") else rest.at + path, headers=headers)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    cuts=st.lists(st.floats(0, 1), max_size=3),
    partitions=st.sampled_from([0, 3]),
    path=st.sampled_from(["/messages?stream", PARTITION, "/events"]),
)
def test_stream_cut_anywhere_goes_on_where_it_was(
    site: Site, sizes: list[int], cuts: list[float], partitions: int, path: str
) -> None:
    topic = make_topic(site, f"cut-{next(_numbers)}", partitions)
    for at, size in enumerate(sizes):
        sent = ({"value": f"{at}-{i}", **_home(path)} for i in range(size))
        assert topic.produce(*sent).status_code == 200
    if path == "/events":
        path = f"/events/{topic.topic}?stream&from=earliest"
    found: list[Any] = []
    last = ""
    for cut in [*cuts, 1.0]:
        headers = {"Last-Event-ID": last} if last else {}
        stream = take(opened(topic, path, **headers), sum(sizes) - len(found))
        events, identity = parse(stream[: round(cut * len(stream))])
        found += [event.data for event in events]
        last = identity or last
    expected = {f"{at}-{i}" for at, size in enumerate(sizes) for i in range(size)}
    assert len(found) == len(expected)
    assert {message["value"] for message in found} == expected
    if not partitions or "partitions" in path:
        assert [message["value"] for message in found] == sorted(expected)


def _home(path: str) -> dict[str, int]:
    return {"partition": 0} if path == PARTITION else {}


def test_stream_that_began_at_the_end_misses_nothing(parted: Rest) -> None:
    parted.texts(*map(str, range(8)))
    path = "/messages?stream&start=latest"
    answer = opened(parted, path)
    first = next(iter(answer.iter_encoded()))
    answer.close()
    _, last = parse(first)
    parted.texts(*map(str, range(8, 16)))
    stream = take(opened(parted, path, **{"Last-Event-ID": last}), 8)
    assert sorted(values(stream), key=int) == [str(i) for i in range(8, 16)]


@pytest.mark.parametrize("batches", [["a", "b"], ["ab"], []])
def test_partition_that_is_streamed_from_its_end_goes_on(rest: Rest, batches: list[str]) -> None:
    for batch in batches:
        rest.texts(*batch)
    answer = opened(rest, f"{PARTITION}&start=latest")
    pieces = iter(answer.iter_encoded())
    _, last = parse(next(pieces))
    rest.texts("c", "d")
    assert values(next(pieces)) == ["c", "d"]
    answer.close()
    assert values(take(opened(rest, f"{PARTITION}&last_event_id={last}"), 2)) == ["c", "d"]


def test_events_have_what_messages_have(rest: Rest) -> None:
    rest.produce(
        {"key": "k", "value": {"a": 1}, "properties": {"x": "y"}},
        value_schema={
            "type": "JSON",
            "schema": {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
        },
    )
    [read] = rest.read()
    [event] = parse(take(opened(rest, PARTITION), 1))[0]
    assert event.data == read
    assert event.id == read["messageId"]
    [event] = parse(take(opened(rest, f"/events/{rest.topic}?stream&from=earliest"), 1))[0]
    assert isinstance(event.data, dict)
    assert (event.data["key"], event.data["value"]) == ("k", '{"a":1}')
    assert event.data["properties"] == {"x": "y"}


def test_headers_let_events_through_at_once(rest: Rest) -> None:
    answer = opened(rest, PARTITION)
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Content-Length" not in answer.headers
    answer.close()


def test_page_on_the_list_may_stream(topics: Topics) -> None:
    page = "https://pages.example"
    _, rest = topics(cors_origins=page)
    answer = opened(rest, PARTITION, Origin=page, Accept="text/event-stream")
    assert answer.headers["Access-Control-Allow-Origin"] == page
    answer.close()
    asked = {"Origin": page, "Access-Control-Request-Method": "GET"}
    allowed = rest.client.options(rest.at + PARTITION, headers=asked).headers
    assert "Last-Event-ID" in allowed["Access-Control-Allow-Headers"]


def test_accepting_events_asks_for_a_stream(rest: Rest) -> None:
    rest.texts("a")
    path = "/partitions/0/messages"
    assert values(take(opened(rest, path, Accept="text/event-stream"), 1)) == ["a"]
    assert opened(rest, f"{path}?timeout=0&stream=false", Accept="text/event-stream").is_json


def test_silence_is_broken_by_comments(topics: Topics) -> None:
    _, rest = topics(stream_heartbeat="50ms")
    answer = opened(rest, PARTITION)
    pieces = iter(answer.iter_encoded())
    next(pieces)
    assert [next(pieces), next(pieces)] == [b":\n\n", b":\n\n"]
    rest.texts("a")
    while not (found := values(next(pieces))):
        pass
    assert found == ["a"]
    answer.close()


def test_stream_ends_after_its_time(topics: Topics) -> None:
    _, rest = topics(stream_max_duration="200ms")
    rest.texts("a")
    assert values(opened(rest, PARTITION).data) == ["a"]
    consumer = rest.consumer()
    assert values(rest.client.get(f"{consumer.at}/messages?stream").data) == ["a"]


def test_streams_end_when_the_worker_stops(topics: Topics) -> None:
    site, rest = topics()
    rest.texts("a")
    consumer = rest.consumer()
    paths = [PARTITION, "/messages?stream", "/events/t?stream&from=earliest"]
    paths.append(f"{consumer.at.removeprefix(rest.at)}/messages?stream")
    begun = Semaphore(0)
    with ThreadPoolExecutor(len(paths)) as pool:
        reading = [pool.submit(streamed, rest, path, begun) for path in paths]
        for _ in paths:
            assert begun.acquire(timeout=20)
        site.app.extensions["router.stop"]()
        assert [values(task.result(20)) for task in reading] == [["a"]] * len(paths)


def test_streams_of_a_worker_are_bounded(topics: Topics) -> None:
    _, rest = topics(stream_connections="1")
    first = opened(rest, PARTITION)
    for path in (PARTITION, "/messages?stream"):
        assert told(opened(rest, path)) == (429, 42901)
    first.close()
    answer = opened(rest, PARTITION)
    assert answer.status_code == 200
    answer.close()


def test_refused_streams_do_not_count(topics: Topics) -> None:
    site, rest = topics(stream_connections="1")
    for _ in range(3):
        assert told(opened(rest, f"{PARTITION}&last_event_id=@9.9.9.9")) == (400, 40001)
        assert told(opened(Rest(site.client, "none"), PARTITION)) == (404, 40401)
        rest.client.head(rest.at + PARTITION)
    answer = opened(rest, PARTITION)
    assert answer.status_code == 200
    answer.close()


def test_piece_of_a_consumers_stream_is_bounded_as_those_of_other_streams(topics: Topics) -> None:
    _, rest = topics(stream_buffer="1k")
    rest.texts(*("x" * 900 for _ in range(4)))
    consumer = rest.consumer()
    stream = opened(rest, f"{consumer.at.removeprefix(rest.at)}/messages?stream")
    pieces = (values(piece) for piece in stream.iter_encoded())
    found = list(itertools.islice((piece for piece in pieces if piece), 4))
    stream.close()
    assert [len(piece) for piece in found] == [1, 1, 1, 1]


def test_consumer_streams_what_nobody_was_given(rest: Rest) -> None:
    rest.texts("a", "b")
    consumer = rest.consumer()
    assert consumer.values("max_messages=1") == ["a"]
    stream = take(opened(rest, f"{consumer.at.removeprefix(rest.at)}/messages?stream"), 1)
    [event] = parse(stream)[0]
    assert rest.acknowledge(event.id).status_code == 204
    assert rest.cursor()["backlog"] == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PARTITION, {"error_code", "message"}),
        ("/messages?stream", {"error_code", "message"}),
        ("events", {"mrErrorCode", "errorMessage"}),
    ],
)
def test_failure_within_a_stream_is_an_event(
    site: Site, rest: Rest, path: str, fields: set[str]
) -> None:
    def fail(*_: Any) -> Any:
        raise ReadFailedError("damaged")

    answer = opened(rest, f"/events/{rest.topic}?stream" if path == "events" else path)
    pieces = iter(answer.iter_encoded())
    next(pieces)
    reader = next(iter(_readers(site, rest)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(reader), "receive", fail)
        [event] = parse(b"".join(pieces))[0]
    assert event.kind == "error"
    assert isinstance(event.data, dict)
    assert set(event.data) == fields
    answer.close()


def _readers(site: Site, rest: Rest) -> set[Any]:
    topic = site.backend.topic(TopicName.parse(rest.topic))
    return {reader for log in topic.logs.values() for reader in log.readers}


def test_closed_stream_leaves_no_reader(site: Site, parted: Rest) -> None:
    parted.texts("a")
    take(opened(parted, "/messages?stream"), 1)
    assert _readers(site, parted) == set()


def test_partitions_that_came_since_are_read_from_their_beginning(parted: Rest) -> None:
    for at in range(4):
        parted.produce({"value": str(at), "partition": at})
    events, _ = parse(take(opened(parted, "/messages?stream"), 4))
    known = ",".join(events[-1].id.split(",")[:2])
    stream = take(opened(parted, "/messages?stream", **{"Last-Event-ID": known}), 2)
    assert sorted(values(stream)) == ["2", "3"]


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (PARTITION, "nonsense"),
        (PARTITION, "1.0,1.0"),
        (PARTITION, "@1.2.3.4"),
        ("/messages?stream", "CAEQAA=="),
        ("/messages?stream", ",".join(["1.0"] * 600)),
    ],
)
def test_place_that_cannot_be_read_is_refused(parted: Rest, path: str, last: str) -> None:
    assert told(opened(parted, path, **{"Last-Event-ID": last})) == (400, 40001)


@pytest.mark.parametrize("more", [0, 1])
def test_topic_that_no_place_has_room_for_is_not_streamed(site: Site, more: int) -> None:
    topic = make_topic(site, f"wide-{next(_numbers)}", MAX_MARKS + more)
    for path in ("/messages?stream", f"/events/{topic.topic}?stream&from=earliest"):
        answer = opened(topic, path)
        if more:
            assert answer.status_code == 400
            assert f"at most {MAX_MARKS} partitions" in answer.text
        else:
            _, last = parse(next(iter(answer.iter_encoded())))
            answer.close()
            again = opened(topic, path, **{"Last-Event-ID": last})
            assert again.status_code == 200
            again.close()


def test_topic_is_read_whole_as_a_stream_only(rest: Rest) -> None:
    assert told(opened(rest, "/messages")) == (400, 40001)
    assert told(opened(rest, "/messages?stream&after=1:0:-1")) == (400, 40001)


def test_events_without_stream_say_what_is_missing(site: Site) -> None:
    answer = site.client.get("/events/t")
    assert answer.status_code == 404
    assert "a group and a consumer id" in answer.get_json()["message"]
    assert site.client.get("/events/none?stream").get_json()["mrErrorCode"] == 3001


def test_group_and_id_are_a_poll_whatever_is_asked(site: Site, rest: Rest) -> None:
    rest.texts("a")
    answer = site.client.get(f"/events/{rest.topic}/g/c?stream&timeout=0&from=earliest")
    assert answer.get_json() == ["a"]


def test_stream_begins_at_the_end_where_the_store_tells_nothing(site: Site, parted: Rest) -> None:
    def refuse(*_: Any) -> Any:
        raise NotAllowedError("no administration")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.backend, "describe_topic", refuse)
        answer = parted.client.get(f"{parted.at}/messages?stream&start=latest")
        assert answer.status_code == 200
        answer.close()


def test_reading_that_fails_leaves_nobody_waiting(site: Site, rest: Rest) -> None:
    class Box(PollMailbox):
        """A mailbox of which one can tell that it is forgotten."""

    box = Box()
    known = weakref.ref(box)
    reading = TopicReader(
        site.backend,
        TopicMetadataCache(site.backend, 0, 5, time.monotonic),
        ReadOptions.from_settings(site.settings),
        time.monotonic,
    )
    bad = Position(-1, -1, NOT_PARTITIONED)
    topic = TopicName.parse(rest.topic)
    with pytest.raises(BadRequestError):
        reading.read(topic, NOT_PARTITIONED, bad, ReadBounds(0, 1, 1), (box, ConnectedClient()))
    del box
    gc.collect()
    assert known() is None
