"""Every row of the table of errors, asked of `router serve` with its real broker.

`tests/unit/web/test_error_table.py` asks the application alone for every failure that there is;
here each refusal has its real cause: a process that is stopped, a full disk, a damaged file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.processes import wait_until
from tests.system.stack import Stack
from tests.system.traffic import waiting
from tests.unit.web.applications import BOTH, HASHES
from tests.unit.web.signing import signature

pytestmark = pytest.mark.system
# A write to a broker that stands still is given up after 30 seconds.
PATIENCE = 50.0
TEXT = {"Content-Type": "text/plain"}
Stacks = Callable[..., Stack]


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[Stacks]:
    made: list[Stack] = []

    def make(**settings: str) -> Stack:
        made.append(Stack(tmp_path, "--workers", "1", **settings))
        made[-1].start()
        return made[-1]

    yield make
    for stack in made:
        stack.stop()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router with small limits and a topic `t`, in which `hello` is stored."""
    settings = {"publish_max_message": "1000", "publish_max_batch": "5000"}
    made = Stack(tmp_path_factory.mktemp("stack"), "--workers", "1", **settings)
    made.start()
    assert ask(made, "POST", "/events/t", data=b"hello").status_code == 200
    yield made
    made.stop()


def ask(stack: Stack, method: str, path: str, **more: Any) -> requests.Response:
    return requests.request(method, stack.url + path, timeout=PATIENCE, **more)


def refused(answer: requests.Response, status: int, code: int, mrstatus: int) -> dict[str, Any]:
    """Check that an answer is this row of the table, in both dialects; return its body."""
    told: dict[str, Any] = answer.json()
    assert set(told) == BOTH
    assert (answer.status_code, told["mrErrorCode"], told["mrstatus"]) == (status, code, mrstatus)
    assert told["httpStatusCode"] == told["status"] == status
    assert told["errorMessage"] == told["message"] != ""
    assert told["transactionid"] == answer.headers["transactionId"]
    assert ("Retry-After" in answer.headers) == (status in {429, 503})
    return told


@pytest.mark.parametrize(
    ("kind", "body", "row"),
    [
        ("text/plain", b"x\n" * 3000, (413, 3001, 5001)),
        ("text/plain", b"a\n" + b"x" * 1001, (413, 3004, 5004)),
        ("application/cambria", b"1.9.ka", (400, 3003, 5007)),
        ("application/cambria", b"0.4096001.a", (400, 3003, 5007)),
        ("application/json", b'{"a": 1} {"a": ', (400, 3005, 5007)),
        ("application/json", b'[{"a": 1}, 2]', (400, 3005, 5007)),
    ],
)
def test_body_that_cannot_be_published_is_refused_whole(
    stack: Stack, kind: str, body: bytes, row: tuple[int, int, int]
) -> None:
    refused(ask(stack, "POST", "/events/new", data=body, headers={"Content-Type": kind}), *row)
    refused(ask(stack, "GET", "/topics/new"), 404, 3001, 6002)


@pytest.mark.parametrize(
    ("method", "path", "row"),
    [
        ("GET", "/events/absent/g/c", (404, 3001, 3001)),
        ("GET", "/events/t", (404, 5008, 5008)),
        ("GET", "/events/t/g", (404, 5008, 5008)),
        ("GET", "/events/t/g/c?from=middle", (400, 3010, 5008)),
        ("GET", "/events/t/bytes/c?from=earliest&maxBytes=4", (413, 3011, 5008)),
        ("PUT", "/events/t", (405, 3003, 3003)),
        ("GET", "/absent", (404, 3001, 3001)),
        ("POST", "/mirrormakers/listall", (404, 3001, 3001)),
        ("PUT", "/transaction", (405, 3003, 3003)),
        ("GET", "/topics/absent/producers", (404, 3001, 6005)),
        ("GET", "/topics/absent/consumers", (403, 3001, 6006)),
        ("PUT", "/topics/absent/consumers/k", (404, 3001, 3001)),
        ("GET", "/apiKeys/absent", (404, 1004, 1004)),
        ("DELETE", "/v1/apiKeys/absent", (404, 1004, 1004)),
        ("POST", "/admin/blacklist/nobody", (400, 5005, 5005)),
        ("GET", "/metrics/absent", (404, 3001, 6013)),
    ],
)
def test_request_that_cannot_be_served_is_refused(
    stack: Stack, method: str, path: str, row: tuple[int, int, int]
) -> None:
    refused(ask(stack, method, path), *row)


def test_accept_that_cannot_be_read_is_refused(stack: Stack) -> None:
    refused(ask(stack, "GET", "/events/t/g/c", headers={"Accept": "text"}), 400, 3010, 5008)


def test_poll_with_a_body_over_the_limit_is_refused(stack: Stack) -> None:
    refused(ask(stack, "GET", "/events/t/g/c", data=b"x" * 5001), 413, 3008, 5008)


def test_text_that_cannot_tell_messages_apart_is_refused_and_consumes_nothing(stack: Stack) -> None:
    ask(stack, "POST", "/events/lines", data=b"a\nb")
    path = "/events/lines/g/c?from=earliest&timeout=5000"
    refused(ask(stack, "GET", path, headers={"Accept": "text/plain"}), 406, 5008, 5008)
    assert ask(stack, "GET", path).json() == ["a\nb"]


def test_poll_of_an_id_that_polls_already_is_refused(stack: Stack) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, stack, "GET", "/events/t/busy/c?timeout=20000")
        wait_until(lambda: waiting(stack) == 1)
        told = refused(ask(stack, "GET", "/events/t/busy/c?timeout=300"), 503, 3002, 3002)
        ask(stack, "POST", "/events/t", data=b"go")
        assert first.result(PATIENCE).json() == ["go"]
    assert "polling already" in told["message"]


def test_too_many_empty_polls_are_refused_until_there_is_a_message(stack: Stack) -> None:
    path = "/events/t/empty/c?timeout=0"
    began, polls = time.monotonic(), 0
    while (over := ask(stack, "GET", path)).status_code == 200:
        polls += 1
        # Ten at once, and one more in each 6 s.
        assert polls <= 10 + (time.monotonic() - began) / 6
    assert polls >= 10
    refused(over, 429, 5012, 5012)
    assert 1 <= int(over.headers["Retry-After"]) <= 6
    ask(stack, "POST", "/events/t", data=b"more")
    assert ask(stack, "GET", path).json() == ["more"]


def test_topic_deleted_under_a_waiting_poll_is_told(stack: Stack) -> None:
    ask(stack, "POST", "/events/doomed", data=b"x")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, stack, "GET", "/events/doomed/g/c?timeout=20000")
        wait_until(lambda: waiting(stack) == 1)
        assert ask(stack, "DELETE", "/topics/doomed").status_code == 200
        refused(answer.result(PATIENCE), 404, 3001, 3001)


def test_group_of_a_topic_made_anew_begins_where_it_asks(stack: Stack) -> None:
    path = "/events/again/g/c?from=earliest&timeout=5000"
    for text in (b"old", b"new"):
        ask(stack, "POST", "/events/again", data=text)
        assert ask(stack, "GET", path).json() == [text.decode()]
        ask(stack, "DELETE", "/topics/again")


@pytest.mark.parametrize("forbidden", [401, 403])
def test_credentials_and_rights_are_demanded(
    stacks: Stacks, tmp_path: Path, forbidden: int
) -> None:
    (tmp_path / "users").write_text("".join(f"{name}:{HASHES[name]}\n" for name in HASHES))
    (tmp_path / "rights").write_text("argon2 * publish\n")
    stack = stacks(
        auth_users=str(tmp_path / "users"),
        auth_permissions=str(tmp_path / "rights"),
        auth_forbidden_status=str(forbidden),
    )
    for auth in (None, ("argon2", "wrong"), ("nobody", "secret")):
        answer = ask(stack, "POST", "/events/t", data=b"x", auth=auth)
        refused(answer, 401, 4001, 4001)
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    assert ask(stack, "POST", "/events/t", data=b"x", auth=("argon2", "secret")).ok
    for user in ("bcrypt", "apr1"):
        denied = ask(stack, "POST", "/events/t", data=b"x", auth=(user, "secret"))
        refused(denied, forbidden, 4002, 4002)
    denied = ask(stack, "GET", "/events/t/g/c", auth=("argon2", "secret"))
    refused(denied, forbidden, 4002, 4002)


def test_keys_owners_and_blacklist_survive_a_restart(stacks: Stacks) -> None:
    stack = stacks(acl_enforce="true", server_trusted_proxies="127.0.0.1")
    made = ask(stack, "POST", "/apiKeys/create", json={"description": "mine"}).json()

    def signed() -> dict[str, str]:
        return signature(made["key"], made["secret"])

    ask(stack, "POST", "/topics/create", json={"topicName": "owned"}, headers=signed())
    ask(stack, "PUT", "/topics/owned/consumers/other", headers=signed())
    assert ask(stack, "POST", "/admin/blacklist/203.0.113.0/24").status_code == 204
    assert stack.stop() == 0
    stack.start()
    refused(ask(stack, "POST", "/events/owned", data=b"x"), 403, 4002, 5009)
    refused(ask(stack, "GET", "/events/owned/g/c"), 403, 4002, 5008)
    refused(ask(stack, "PUT", "/topics/owned/producers/k"), 403, 4002, 6003)
    refused(ask(stack, "PUT", "/topics/owned/consumers/k"), 403, 4002, 6009)
    assert ask(stack, "POST", "/events/owned", data=b"x", headers=signed()).ok
    assert ask(stack, "GET", "/topics/owned/consumers").json()["users"] == ["other"]
    forwarded = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9"}
    wait_until(lambda: ask(stack, "GET", "/topics", headers=forwarded).status_code == 403)
    refused(ask(stack, "GET", "/topics", headers=forwarded), 403, 4002, 4002)
    assert ask(stack, "GET", "/ready", headers=forwarded).ok


def test_full_disk_refuses_messages_and_goes_on_serving_polls(stacks: Stacks) -> None:
    stack = stacks()
    path = "/events/t/g/c?timeout=0"
    ask(stack, "POST", "/events/t", data=b"x")
    ask(stack, "GET", path)
    ask(stack, "POST", "/events/t", data=b"before")
    assert stack.stop() == 0
    stack.environ["ROUTER_STORAGE_RESERVE"] = "1000000G"
    stack.start()
    refused(ask(stack, "POST", "/events/t", data=b"x"), 500, 3002, 5002)
    assert [ask(stack, "GET", path).json() for _ in range(2)] == [["before"], []]
    refused(ask(stack, "GET", "/events/t/new/c"), 500, 3009, 5008)


def test_broker_that_is_gone_is_told(stacks: Stacks) -> None:
    stack = stacks(publish_timeout="3s", backend_timeout="3s")
    ask(stack, "POST", "/events/t", data=b"x")
    assert stack.process is not None
    stack.process.send_signal(signal.SIGSTOP)  # who would start it again
    try:
        os.kill(stack.broker(), signal.SIGKILL)
        answer = ask(stack, "POST", "/events/t", data=b"x")
        if answer.status_code == 504:  # it was sent to the broker just before, its outcome unknown
            answer = ask(stack, "POST", "/events/t", data=b"x")
        refused(answer, 503, 3002, 3002)
        refused(ask(stack, "GET", "/events/t/g/c?timeout=0"), 503, 3002, 3002)
        refused(ask(stack, "GET", "/ready"), 503, 3002, 3002)
        assert ask(stack, "GET", "/health").ok
    finally:
        stack.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def frozen(broker: int) -> Iterator[None]:
    os.kill(broker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker, signal.SIGCONT)


def test_broker_that_does_not_answer_in_time_is_told(stacks: Stacks) -> None:
    stack = stacks(publish_timeout="3s", backend_timeout="3s")
    ask(stack, "POST", "/events/t", data=b"x")
    with frozen(stack.broker()):
        refused(ask(stack, "POST", "/events/t", data=b"x"), 504, 3006, 5006)
        refused(ask(stack, "GET", "/events/t/g/c?timeout=0"), 504, 3006, 5006)


def stopped_while_publishing(stack: Stack, topic: str) -> requests.Response:
    """Publish thirty entries, of which some are on disk when the broker stops for a while."""
    ask(stack, "POST", "/topics/create", json={"topicName": topic})
    journal = stack.folder / "data" / "journal"
    body = b"\n".join(b"%07d" % number + b"x" * 899_993 for number in range(30))

    def size() -> int:
        return sum(file.stat().st_size for file in journal.iterdir())

    before, broker = size(), stack.broker()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, stack, "POST", f"/events/{topic}", data=body, headers=TEXT)
        until = time.monotonic() + PATIENCE
        while size() < before + 5_000_000 and not answer.done():
            assert time.monotonic() < until
        with frozen(broker):
            return answer.result(PATIENCE)


@pytest.mark.timeout(120)
def test_partial_publish_tells_how_many_messages_are_stored(stacks: Stacks) -> None:
    stack = stacks(publish_timeout="4s")
    topic, answer = next(
        (topic, answer)
        for topic in (f"t{number}" for number in range(10))
        # A broker that has stored all of it before it is stopped is asked again.
        if (answer := stopped_while_publishing(stack, topic)).status_code != 200
    )
    told = refused(answer, 500, 3007, 5007)
    seen = 0
    while some := ask(stack, "GET", f"/events/{topic}/g/c?from=earliest&timeout=500").json():
        assert [int(text[:7]) for text in some] == list(range(seen, seen + len(some)))
        seen += len(some)
    count = next(int(word) for word in told["message"].split() if word.isdigit())
    # What was on its way when the answer was given may have been stored as well, one entry at most.
    assert 0 < count <= seen <= count + 4
    assert seen < 30


def test_damaged_messages_are_not_served(stacks: Stacks) -> None:
    stack = stacks()
    ask(stack, "POST", "/events/t", data=b"precious" * 100)
    assert stack.stop() == 0
    (segment,) = (stack.folder / "data" / "ledgers").rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"precious")] ^= 1
    segment.write_bytes(data)
    stack.start()
    refused(ask(stack, "GET", "/events/t/g/c?from=earliest&timeout=0"), 500, 3009, 5008)
