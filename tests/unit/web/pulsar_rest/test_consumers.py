"""Consumers and cursors."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from router.backends import Batch, Start
from router.errors import BackendUnavailableError
from router.model import Message, Subscription, TopicName
from router.services.fetch.consumers import KIND
from router.services.fetch.in_flight import KIND as GIVEN
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.events import parse, take
from tests.unit.web.pulsar_rest.rest import Fetching, Rest, told

Topics = Callable[..., tuple[Site, Rest]]


class Wall:
    """A time of day that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.ms = time.time_ns() // 10**6

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    """The time of day of applications that are made from here on."""
    wall = Wall()
    monkeypatch.setattr("router.app.wall_ms", wall)
    return wall


def test_base_uri_is_all_that_a_client_needs(rest: Rest) -> None:
    rest.texts("a")
    consumer = rest.consumer(name="worker-1")
    assert consumer.created["name"] == "worker-1"
    assert consumer.base_uri == f"http://localhost{rest.at}/subscription/s/consumer/{consumer.id}"
    path = consumer.base_uri.removeprefix("http://localhost")
    assert rest.client.get(f"{path}/messages?timeout=0").get_json()["messages"]
    assert rest.client.delete(path).status_code == 204


@pytest.mark.slow
@pytest.mark.parametrize(
    ("proxies", "headers", "expected"),
    [
        ("10.0.0.0/8", {"Host": "a.example:8080"}, "http://a.example:8080"),
        ("", {"X-Forwarded-Host": "evil.example"}, "http://localhost"),
        ("127.0.0.1", {"X-Forwarded-Host": "evil, b.example"}, "http://b.example"),
        ("127.0.0.1", {"X-Forwarded-Proto": "https"}, "https://localhost"),
        ("127.0.0.1", {"X-Forwarded-Proto": "gopher"}, "http://localhost"),
        ("127.0.0.1", {"X-Forwarded-Prefix": "/mr/"}, "http://localhost/mr"),
        ("127.0.0.1", {"X-Forwarded-Prefix": "//x@y"}, "http://localhost"),
        ("10.0.0.0/8", {"X-Forwarded-Host": "evil.example"}, "http://localhost"),
        ("10.0.0.0/8", {"Host": "a b"}, "http://localhost:80"),
        ("", {"Host": "[::1]:8"}, "http://[::1]:8"),
    ],
)
def test_base_uri_begins_as_the_client_reached_us(
    topics: Topics, proxies: str, headers: dict[str, str], expected: str
) -> None:
    _, rest = topics(server_trusted_proxies=proxies)
    host = {"HTTP_HOST": headers.pop("Host")} if "Host" in headers else {}
    answer = rest.post("/subscription/s", {}, headers=headers, environ_overrides=host)
    assert answer.get_json()["base_uri"].startswith(f"{expected}/topics/public/default/t/")


def test_known_id_is_the_same_consumer(rest: Rest) -> None:
    first = rest.consumer(name="c")
    again = rest.post("/subscription/s", {"id": first.id, "name": "c"})
    assert (again.status_code, again.get_json()["id"]) == (200, first.id)
    assert rest.post("/subscription/s", {"id": "mine"}).get_json()["id"] == "mine"
    assert rest.post("/subscription/other", {"name": "c"}).status_code == 200


def test_consumer_may_bring_a_schema(rest: Rest) -> None:
    answer = rest.post("/subscription/s", {"schema_type": "INT32"}).get_json()
    assert answer["schema_version"] == 0
    assert rest.consumer(schema_version=0).created["schema_version"] == 0
    assert rest.consumer().created["schema_version"] is None


def test_new_subscription_begins_at_the_end_unless_told(rest: Rest) -> None:
    rest.texts("a")
    late = Fetching(rest, "late", rest.post("/subscription/late", b"").get_json())
    early = Fetching(rest, "early", rest.post("/subscription/early?start=earliest", {}).get_json())
    rest.texts("b")
    assert late.values() == ["b"]
    assert early.values() == ["a", "b"]


def test_one_name_is_taken_once_by_many_at_once(rest: Rest) -> None:
    def create(_: int) -> int:
        return rest.post("/subscription/s", {"name": "c"}).status_code

    with ThreadPoolExecutor(6) as pool:
        codes = list(pool.map(create, range(6)))
    assert sorted(codes) == [200, 409, 409, 409, 409, 409]


def test_consumers_are_bounded(topics: Topics) -> None:
    site, rest = topics(pip64_max_consumers="2", pip64_max_subscriptions="1")
    first = rest.consumer()
    rest.consumer()
    assert told(rest.post("/subscription/s", {})) == (403, 40301)
    assert told(rest.post("/subscription/other", {})) == (403, 40301)
    first.delete()
    assert rest.post("/subscription/s", {}).status_code == 200
    assert len(site.node.registry.list(KIND, 1)) == 1


def test_idle_consumers_are_forgotten(wall: Wall, topics: Topics) -> None:
    site, rest = topics(
        pip64_max_consumers="1", pip64_max_subscriptions="1", pip64_consumer_idle="200ms"
    )
    first = rest.consumer(name="c")
    wall.ms += 250
    assert told(first.ask()) == (404, 40403)
    assert rest.post("/subscription/s", {"name": "c"}).status_code == 200
    wall.ms += 250
    assert rest.post("/subscription/other", {"name": "c"}).status_code == 200
    assert len(site.node.registry.list(KIND, 1)) == 1


def test_what_was_given_is_forgotten_when_it_is_acknowledged(wall: Wall, topics: Topics) -> None:
    site, rest = topics(pip64_ack_timeout="50ms")
    consumer = rest.consumer()
    [found] = rest.texts("a")
    assert consumer.values() == ["a"]
    assert len(site.node.registry.list(GIVEN, 1)) == 1
    rest.acknowledge(found)
    wall.ms += 100
    assert consumer.values() == []
    assert site.node.registry.list(GIVEN, 1) == []


def test_what_was_given_goes_with_the_last_consumer(topics: Topics) -> None:
    site, rest = topics(pip64_max_subscriptions="1")
    rest.texts("a")
    consumer = rest.consumer()
    assert consumer.values() == ["a"]
    consumer.delete()
    assert len(site.node.registry.list(GIVEN, 1)) == 1
    rest.consumer("other")
    assert site.node.registry.list(GIVEN, 1) == []


def test_fetching_keeps_a_consumer_alive(wall: Wall, topics: Topics) -> None:
    _, rest = topics(pip64_consumer_idle="600ms")
    consumer = rest.consumer()
    for _ in range(8):
        wall.ms += 550
        assert consumer.fetch() == []
    wall.ms += 650
    assert told(consumer.ask()) == (404, 40403)


def test_any_worker_serves_a_consumer(site: Site, rest: Rest) -> None:
    rest.texts("a", "b")
    other = site.worker()
    consumer = rest.consumer()
    assert consumer.values("max_messages=1", other) == ["a"]
    assert consumer.values() == ["b"]
    assert other.delete(consumer.at).status_code == 204
    assert told(consumer.ask()) == (404, 40403)


@pytest.mark.slow
def test_unacknowledged_come_again_after_the_timeout(wall: Wall, topics: Topics) -> None:
    _, rest = topics(pip64_ack_timeout="300ms")
    rest.texts("a", "b", "c")
    consumer = rest.consumer()
    found = consumer.fetch()
    rest.acknowledge(found[1]["messageId"])
    wall.ms += 290
    assert consumer.values() == []
    wall.ms += 50
    assert consumer.values() == ["a", "c"]


@pytest.mark.slow
def test_given_together_come_again_together(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = itertools.count(0, 40)
    ahead, giving = 0, False

    def wall_ms() -> int:
        # While they are given, each look at the clock is in a later step of it than the one before.
        nonlocal ahead
        if giving:
            ahead = next(later)
        return time.time_ns() // 10**6 + ahead

    monkeypatch.setattr("router.app.wall_ms", wall_ms)
    _, rest = topics(pip64_ack_timeout="300ms")
    rest.texts("a", "b", "c")
    consumer = rest.consumer()
    giving = True
    assert consumer.values() == ["a", "b", "c"]
    giving = False
    assert consumer.values("timeout=5000") == ["a", "b", "c"]


def test_acknowledged_never_come_again(wall: Wall, topics: Topics) -> None:
    _, rest = topics(pip64_ack_timeout="1ms")
    rest.texts("a", "b", "c")
    consumer = rest.consumer()
    found = consumer.fetch()
    rest.acknowledge(found[2]["messageId"], kind="cumulative")
    wall.ms += 50
    assert consumer.values() == []


def test_bounds_of_a_fetch(rest: Rest) -> None:
    rest.texts("a" * 10, "b" * 10, "c" * 10)
    consumer = rest.consumer()
    assert consumer.values("max_bytes=15") == ["a" * 10]
    assert consumer.values("max_bytes=5") == ["b" * 10]
    assert consumer.values("max_messages=9&max_bytes=10") == ["c" * 10]


@pytest.mark.slow
def test_partitions_are_shared_and_nothing_is_given_twice(parted: Rest) -> None:
    sent = {str(i) for i in range(40)}
    parted.texts(*sorted(sent))
    consumers = [parted.consumer(name=name) for name in ("a", "b")]
    found: list[str] = []
    lock = threading.Lock()

    def drain(consumer: Fetching) -> None:
        while some := consumer.values("timeout=700&max_messages=3"):
            with lock:
                found.extend(some)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(drain, consumers))
    assert sorted(found) == sorted(sent)


def test_fetch_waits_for_a_message(site: Site, rest: Rest) -> None:
    consumer = rest.consumer()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.values, "timeout=20000")
        site.until_claimed(1)
        rest.texts("a")
        assert waiting.result(20) == ["a"]


def test_stop_answers_waiting_fetches(topics: Topics) -> None:
    site, rest = topics()
    consumer = rest.consumer()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(consumer.values, "timeout=60000")
        reading = pool.submit(rest.client.get, f"{rest.at}/partitions/0/messages?timeout=60000")
        site.until_claimed(1)
        site.until_read(1)
        site.app.extensions["router.stop"]()
        assert waiting.result(20) == []
        assert reading.result(20).get_json() == {"messages": []}


def test_too_many_unacknowledged_are_told(topics: Topics) -> None:
    _, rest = topics(pip64_max_unacknowledged="5")
    rest.texts(*map(str, range(12)))
    consumer = rest.consumer()
    assert len(consumer.values("max_messages=6")) == 6
    answer = consumer.ask()
    assert len(answer.get_json().get("messages", ())) == 6
    refused = consumer.ask()
    assert told(refused) == (429, 42901)
    assert "Retry-After" in refused.headers


def test_message_that_cannot_be_read_holds_nothing_up(site: Site, rest: Rest) -> None:
    topic = TopicName.parse(rest.topic)
    rest.produce({"value": 1}, schema_type="INT32")
    bad = [Message(b"xx", schema_version=bytes(8)), Message(b"\xff", b"\xfe")]
    unknown = Message(b"?", schema_version=(9).to_bytes(8))
    site.backend.publish(Batch(topic, -1, [*bad, unknown]), 1)
    rest.texts("end", schema_type="NONE")
    first, second, third, fourth, fifth = rest.consumer().fetch()
    assert (first["value"], fifth["value"]) == (1, "end")
    assert (second["value"], second["valueEncoding"]) == ("eHg=", "base64")
    assert second["valueError"]
    assert (third["value"], third["valueEncoding"], third["keyEncoding"]) == (
        "/w==",
        "base64",
        "base64",
    )
    assert fourth["valueError"] == "its schema is not known"


@pytest.mark.parametrize("size", [1, 9, 300])
def test_version_that_no_schema_has_holds_nothing_up(site: Site, rest: Rest, size: int) -> None:
    topic = TopicName.parse(rest.topic)
    site.backend.publish(Batch(topic, -1, [Message(b"?", schema_version=b"\xff" * size)]), 1)
    rest.texts("end")
    strange, last = rest.consumer().fetch()
    assert strange["schemaVersion"] is None
    assert (strange["value"], strange["valueEncoding"]) == ("Pw==", "base64")
    assert strange["valueError"] == "its schema is not known"
    assert last["value"] == "end"
    streamed, _ = parse(take(rest.client.get(f"{rest.at}/partitions/0/messages?stream"), 2))
    assert [event.data for event in streamed] == [strange, last]


def test_cursor_tells_where_a_subscription_stands(parted: Rest) -> None:
    parted.consumer()
    found = {
        at: [
            parted.produce({"value": str(n), "partition": at}).get_json()["messageIds"][0][
                "messageId"
            ]
            for n in range(4)
        ]
        for at in range(4)
    }
    assert parted.acknowledge(found[1][0], found[2][2], kind="cumulative").status_code == 204
    assert parted.acknowledge(found[1][2], found[3][1]).status_code == 204
    cursor = parted.cursor()
    assert cursor["backlog"] == 16 - 1 - 3 - 2
    places = cursor["partitions"]
    assert [place["partition"] for place in places] == [0, 1, 2, 3]
    assert [place["markDelete"] for place in places] == [None, found[1][0], found[2][2], None]
    assert places[1]["acknowledged"] == [{"from": found[1][2], "to": found[1][2]}]
    assert places[3]["acknowledged"] == [{"from": found[3][1], "to": found[3][1]}]


@pytest.mark.parametrize("kind", ["individual", "cumulative"])
def test_null_among_ids_is_a_message_that_was_not_published(rest: Rest, kind: str) -> None:
    first, _ = rest.texts("a", "b")
    rest.consumer()
    body = {"type": kind, "messageIds": [None, first, None]}
    assert rest.post("/subscription/s/cursor", body).status_code == 204
    assert rest.cursor()["backlog"] == 1
    assert rest.post("/subscription/s/cursor", {"messageIds": [None]}).status_code == 204
    assert rest.cursor()["backlog"] == 1


def test_ids_of_apache_pulsar_acknowledge_too(rest: Rest) -> None:
    rest.consumer()
    [published] = rest.produce({"payload": "a"}).get_json()["messagePublishResults"]
    assert rest.acknowledge(published["messageId"]).status_code == 204
    assert rest.cursor()["backlog"] == 0
    assert rest.acknowledge().status_code == 204


def test_reset_of_the_subscription_gives_everything_again(site: Site, rest: Rest) -> None:
    rest.texts("a", "b")
    consumer = rest.consumer()
    assert consumer.values() == ["a", "b"]
    subscription = Subscription(TopicName.parse(rest.topic), "s")
    site.backend.reset(subscription, Start.EARLIEST, 1)
    assert consumer.values() == ["a", "b"]


def test_second_fetch_of_a_consumer_at_once_is_told_to_wait(site: Site, rest: Rest) -> None:
    consumer = rest.consumer()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.values, "timeout=20000")
        site.until_claimed(1)
        assert told(consumer.ask("timeout=0")) == (503, 50301)
        rest.texts("a")
        assert waiting.result(20) == ["a"]


def test_what_cannot_be_noted_is_not_given(site: Site, rest: Rest) -> None:
    rest.texts("a")
    consumer = rest.consumer()
    put = site.node.registry.put

    def fail(kind: str, *more: Any) -> Any:
        if kind == GIVEN:
            raise BackendUnavailableError("the registry is away")
        return put(kind, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site.node.registry, "put", fail)
        assert told(consumer.ask()) == (503, 50301)
    assert consumer.values() == ["a"]


def test_client_that_left_is_given_nothing(site: Site, rest: Rest) -> None:
    rest.texts("a")
    consumer = rest.consumer()

    class Gone:
        def fileno(self) -> int:
            return -1

        def gettimeout(self) -> None:
            return None

        def settimeout(self, _: float | None) -> None:
            return None

    overrides = {"gunicorn.socket": Gone()}
    site.client.get(f"{consumer.at}/messages?timeout=0", environ_overrides=overrides)
    assert consumer.values() == ["a"]


def test_head_fetches_nothing(rest: Rest) -> None:
    rest.texts("a")
    consumer = rest.consumer()
    for path in (f"{consumer.at}/messages", f"{rest.at}/partitions/0/messages"):
        assert rest.client.head(path).status_code == 200
    assert consumer.values() == ["a"]


def test_refused_consumer_leaves_no_subscription_behind(topics: Topics) -> None:
    _, rest = topics(pip64_max_subscriptions="1")
    rest.consumer("first")
    assert told(rest.post("/subscription/second", {})) == (403, 40301)
    answer = rest.client.get(f"{rest.at}/subscription/second/cursor")
    assert told(answer) == (404, 40402)


def test_consumer_deleted_while_it_fetches_is_given_nothing(site: Site, rest: Rest) -> None:
    site.node._idle = 0.1
    consumer, other = rest.consumer(), rest.consumer()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.ask, "timeout=20000")
        site.until_claimed(1)
        assert consumer.delete().status_code == 204
        rest.texts("a")
        assert told(waiting.result(20)) == (404, 40403)
    assert other.values("timeout=20000") == ["a"]


@pytest.mark.slow
def test_fetch_that_waits_knows_the_consumers_that_came_since(topics: Topics) -> None:
    site, rest = topics(2)
    site.node._idle = 1.5
    first = rest.consumer(id="a")
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(first.values, "timeout=4000")
        site.until_claimed(1)
        second = rest.consumer(id="b")
        other = pool.submit(second.values, "timeout=20000")
        site.until_claimed(2)
        rest.produce({"value": "theirs", "partition": 1})
        assert other.result(20) == ["theirs"]
        assert waiting.result(20) == []
    # Its partition went to the first one, which passed over what the second one has.
    second.delete()
    assert first.values() == ["theirs"]
