from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from router.backends import Start
from router.backends.pulsar import rest
from router.backends.pulsar.address import PulsarAddress
from router.backends.pulsar.rest import RestAdmin
from router.backends.pulsar.routes import LookupRoutes
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    NotAllowedError,
    RouterError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import Position, Subscription, TopicInfo, TopicName
from router.model.policies import Policies

T = TopicName.parse("t")


class Service(ThreadingHTTPServer):
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Any] = {}
        self.status = 200
        self.statuses: dict[str, int] = {}
        self.asked: list[tuple[str, str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.removeprefix("/admin/v2/")
        self.server.asked.append((self.command, path, body))
        answers = self.server.answers
        found = answers[path] if isinstance(answers, defaultdict) else answers.get(path)
        data = b"" if found is None else json.dumps(found).encode()
        self.send_response(self.server.statuses.get(path, self.server.status))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the names that the library calls

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
        yield service
        service.shutdown()


@pytest.fixture
def admin(service: Service) -> RestAdmin:
    return RestAdmin(service.url, LookupRoutes(PulsarAddress.parse("pulsar://127.0.0.1:1")))


def soon() -> float:
    return time.monotonic() + 5


@pytest.mark.parametrize(
    ("partitions", "asked"),
    [
        (0, ("PUT", "persistent/public/default/t", {"a": "b"})),
        (
            3,
            (
                "PUT",
                "persistent/public/default/t/partitions",
                {"partitions": 3, "properties": {"a": "b"}},
            ),
        ),
    ],
)
def test_creating_asks_for_the_partitions_and_says_the_properties_but_no_replicas(
    admin: RestAdmin, service: Service, partitions: int, asked: tuple[str, str, Any]
) -> None:
    admin.create(TopicInfo(T, partitions, Policies(replicas=3), {"a": "b"}), soon())
    ((method, path, body),) = service.asked
    assert (method, path, json.loads(body)) == asked


def test_policies_are_refused(admin: RestAdmin, service: Service) -> None:
    with pytest.raises(NotAllowedError, match="policies"):
        admin.create(TopicInfo(T, 0, Policies(retention_ms=1)), soon())
    assert service.asked == []


@pytest.mark.parametrize(
    ("consumers", "unloaded"),
    [
        ([], False),
        (["their-own"], False),
        (["x", "router-7"], True),
        (["router-asking"], False),
        (["router-asking", "router-7"], True),
    ],
)
def test_a_partition_is_unloaded_only_where_another_router_reads_it(
    admin: RestAdmin, service: Service, consumers: list[str], unloaded: bool
) -> None:
    one = "persistent/public/default/t-partition-1"
    found = [{"consumerName": name} for name in consumers]
    service.answers[f"{one}/stats"] = {"subscriptions": {"g": {"consumers": found}}}
    admin.evict(Subscription(T, "g"), 1, "router-asking", soon())
    assert (("PUT", f"{one}/unload", b"") in service.asked) is unloaded


@pytest.mark.parametrize(("partitions", "path"), [(0, "t"), (2, "t/partitions")])
def test_deleting_takes_everything(
    admin: RestAdmin, service: Service, partitions: int, path: str
) -> None:
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": partitions}
    admin.delete(T, soon())
    assert service.asked[-1] == ("DELETE", f"persistent/public/default/{path}?force=true", b"")


def test_topics_of_all_namespaces_are_listed_without_their_partitions(
    admin: RestAdmin, service: Service
) -> None:
    full = "persistent://public/default/"
    service.answers |= {
        "tenants": ["public"],
        "namespaces/public": ["public/default"],
        "persistent/public/default": [f"{full}{n}" for n in ("z", "p-partition-0", "bad name")],
        "persistent/public/default/partitioned": [f"{full}p"],
        "persistent/public/default/p/partitions": {"partitions": 1},
    }
    listed = admin.topics(soon())
    assert [(info.topic.local, info.partitions) for info in listed] == [("p", 1), ("z", 0)]


def test_describing_counts_backlogs(admin: RestAdmin, service: Service) -> None:
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": 0}
    service.answers[f"{topic}/stats"] = {
        "msgInCounter": 5,
        "storageSize": 50,
        "subscriptions": {"g": {"msgBacklog": 3, "consumers": [{}]}},
    }
    service.answers[f"{topic}/internalStats"] = {
        "numberOfEntries": 4,
        "lastConfirmedEntry": "17:3",
        "properties": {"a": "b"},
    }
    stats = admin.describe(T, soon())
    assert stats.info.properties == {"a": "b"}
    assert [(p.messages, p.bytes, p.ledger) for p in stats.partitions] == [(5, 50, 17)]
    assert [(p.first_entry, p.next_entry) for p in stats.partitions] == [(0, 4)]
    assert [(s.name, s.backlog, s.consumers) for s in stats.subscriptions] == [("g", 3, 1)]


@pytest.mark.parametrize(
    ("last", "bounds"),
    [
        ("7:4", (7, 0, 5)),
        ("7:40", (7, 36, 41)),
        ("9:1", (9, 0, 2)),
        ("9:-1", (9, 0, 0)),
        ("-1:-1", (0, 0, 0)),
    ],
)
def test_the_end_of_a_partition_is_in_its_last_ledger(
    admin: RestAdmin, service: Service, last: str, bounds: tuple[int, int, int]
) -> None:
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": 0}
    service.answers[f"{topic}/stats"] = {"msgInCounter": 5}
    service.answers[f"{topic}/internalStats"] = {"numberOfEntries": 5, "lastConfirmedEntry": last}
    (found,) = admin.describe(T, soon()).partitions
    assert (found.ledger, found.first_entry, found.next_entry) == bounds
    assert found.messages == 5


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (401, NotAllowedError),
        (403, NotAllowedError),
        (404, TopicNotFoundError),
        (409, TopicExistsError),
        (500, BackendUnavailableError),
    ],
)
def test_a_refusal_is_raised_as_what_it_means(
    admin: RestAdmin, service: Service, status: int, failure: type[RouterError]
) -> None:
    service.status = status
    with pytest.raises(failure, match=str(status)):
        admin.create(TopicInfo(T), soon())


@pytest.mark.parametrize(
    ("to", "when"), [(Start.EARLIEST, 0), (Start.LATEST, 2**53 - 1), (77, 77), (-5, 0)]
)
def test_a_reset_moves_the_cursor_of_each_partition(
    admin: RestAdmin, service: Service, to: Start | int, when: int
) -> None:
    service.answers["persistent/public/default/t/partitions"] = {"partitions": 2}
    admin.reset(Subscription(T, "a/b"), to, soon())
    assert service.asked[1:] == [
        (
            "POST",
            f"persistent/public/default/t-partition-{p}/subscription/a%2Fb/resetcursor/{when}",
            b"",
        )
        for p in range(2)
    ]


def test_a_reset_to_positions_moves_their_partitions(admin: RestAdmin, service: Service) -> None:
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": 2}
    for partition in range(2):
        stats = {"subscriptions": {"g": {"msgBacklog": 1}}}
        service.answers[f"{topic}-partition-{partition}/stats"] = stats
    admin.reset(Subscription(T, "g"), (Position(5, 17, 1),), soon())
    moving = f"{topic}-partition-1/subscription/g/resetcursor"
    assert service.asked[-1] == ("POST", moving, b'{"ledgerId": 5, "entryId": 17}')
    asked = len(service.asked)
    with pytest.raises(BadRequestError):
        admin.reset(Subscription(T, "g"), (Position(5, 17, 2),), soon())
    assert "POST" not in {method for method, _, _ in service.asked[asked:]}


@pytest.mark.parametrize(
    ("reason", "failure"),
    [("Subscription not found", SubscriptionNotFoundError), ("Topic gone", TopicNotFoundError)],
)
def test_a_reset_of_what_is_not_there_says_what_is_missing(
    admin: RestAdmin, service: Service, reason: str, failure: type[RouterError]
) -> None:
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": 0}
    moving = f"{topic}/subscription/g/resetcursor/0"
    service.statuses[moving], service.answers[moving] = 404, {"reason": reason}
    with pytest.raises(failure):
        admin.reset(Subscription(T, "g"), Start.EARLIEST, soon())


def test_a_subscription_at_a_time_that_exists_is_left_where_it_is(
    admin: RestAdmin, service: Service
) -> None:
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": 0}
    service.answers[f"{topic}/subscriptions"] = ["other", "g"]
    admin.subscribe(Subscription(T, "g"), 5, soon())
    assert [method for method, _, _ in service.asked] == ["GET", "GET"]


def test_a_new_subscription_at_a_time_is_made_and_moved(
    admin: RestAdmin, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Start] = []
    monkeypatch.setattr(rest, "make_subscription", lambda _r, _s, start, _d: made.append(start))
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": 0}
    service.answers[f"{topic}/subscriptions"] = []
    admin.subscribe(Subscription(T, "g"), 5, soon())
    assert made == [Start.EARLIEST]
    assert service.asked[-1] == ("POST", f"{topic}/subscription/g/resetcursor/5", b"")


def test_an_answer_that_is_no_json_is_unavailability(admin: RestAdmin, service: Service) -> None:
    service.answers["tenants"] = None
    service.status = 200
    service.RequestHandlerClass = type(
        "Broken", (Handler,), {"do_GET": lambda self: self.wfile.write(b"no HTTP\r\n\r\n")}
    )
    with pytest.raises(BackendUnavailableError):
        admin.topics(soon())


def test_nobody_there_is_unavailability() -> None:
    routes = LookupRoutes(PulsarAddress.parse("pulsar://127.0.0.1:1"))
    with pytest.raises(BackendUnavailableError, match=r"asked: Connection refused$"):
        RestAdmin("http://127.0.0.1:1", routes).topics(soon())


def test_a_server_of_another_protocol_is_named_without_its_bytes(
    admin: RestAdmin, service: Service
) -> None:
    """As of a port that speaks TLS: they could command a terminal."""

    class Other(Handler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"\x15\x03\x03\x00\x02\x02P\n")

    service.RequestHandlerClass = Other
    with pytest.raises(BackendUnavailableError, match=r"asked: the answer is not HTTP$"):
        admin.topics(soon())


class Elsewhere(Handler):
    """Names the broker that owns the topic, as Apache Pulsar does where there are several."""

    owner = ""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(307)
        self.send_header("Location", self.owner + self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_POST = do_DELETE = answer  # noqa: N815 - the names that the library calls


@pytest.fixture
def elsewhere(service: Service) -> Iterator[Service]:
    """A service that leads to the other one."""
    with Service() as first:
        first.RequestHandlerClass = type("Leading", (Elsewhere,), {"owner": service.url})
        threading.Thread(target=first.serve_forever, args=(0.01,), daemon=True).start()
        yield first
        first.shutdown()


def test_the_owner_of_a_topic_is_asked_for_the_same(service: Service, elsewhere: Service) -> None:
    admin = RestAdmin(elsewhere.url, LookupRoutes(PulsarAddress.parse("pulsar://127.0.0.1:1")))
    topic = "persistent/public/default/t"
    service.answers[f"{topic}/partitions"] = {"partitions": 0}
    admin.create(TopicInfo(T, 0, properties={"a": "b"}), soon())
    admin.reset(Subscription(T, "g"), Start.EARLIEST, soon())
    admin.delete(T, soon())
    changes = [asked for asked in service.asked if asked[0] != "GET"]
    assert changes == [
        ("PUT", topic, b'{"a": "b"}'),
        ("POST", f"{topic}/subscription/g/resetcursor/0", b""),
        ("DELETE", f"{topic}?force=true", b""),
    ]


class Stalling(Handler):
    """Sends less than it promised, in small pieces if `pieces` says so, and then waits."""

    status = 200
    pieces = 1

    def answer(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        with suppress(OSError):  # the client gave up
            for _ in range(self.pieces):
                self.wfile.write(b" ")
                time.sleep(0.1)
            self.rfile.read(1)

    do_GET = answer  # noqa: N815 - the name that the library calls


@pytest.mark.slow
@pytest.mark.parametrize(("status", "pieces"), [(500, 1), (200, 1), (200, 100)])
def test_an_answer_that_does_not_end_is_unavailability(
    admin: RestAdmin, service: Service, status: int, pieces: int
) -> None:
    service.RequestHandlerClass = type("S", (Stalling,), {"status": status, "pieces": pieces})
    began = time.monotonic()
    with pytest.raises(BackendUnavailableError):
        admin.topics(time.monotonic() + 0.3)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("answer", [{}, {"a": 1}, 5, "x", None])
def test_answers_of_something_else_are_unavailability(
    admin: RestAdmin, service: Service, answer: Any
) -> None:
    service.answers = defaultdict(lambda: answer)
    service.answers["tenants"] = answer
    subscription = Subscription(T, "g")
    calls: list[Callable[[], object]] = [
        lambda: admin.topics(soon()),
        lambda: admin.describe(T, soon()),
        lambda: admin.cursors(subscription, soon()),
        lambda: admin.subscribe(subscription, 5, soon()),
        lambda: admin.delete(T, soon()),
    ]
    for call in calls:
        with pytest.raises(BackendUnavailableError):
            call()
