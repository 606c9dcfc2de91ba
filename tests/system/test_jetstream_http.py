"""JetStream over HTTP as its users have it: `router serve`, requests, clients that go."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.http import jetstream
from tests.processes import wait_until
from tests.system.stack import Stack
from tests.unit.web.applications import HASHES, Site
from tests.unit.web.jetstream.streams import SiteClient

pytestmark = pytest.mark.system
CONSUMER = {"config": {"ack_policy": "explicit", "ack_wait": 60_000_000_000}}


class HttpClient:
    """A client of a router, as a user."""

    def __init__(self, stack: Stack, user: tuple[str, str] | None = None) -> None:
        self.stack = stack
        self.session = requests.Session()
        self.session.auth = user

    def post(self, path: str, body: str = "") -> jetstream.Reply:
        """Send a POST; see jetstream.Client."""
        answer = self.session.post(self.stack.url + path, data=body.encode(), timeout=30)
        kind = answer.headers["Content-Type"].partition(";")[0]
        return jetstream.Reply(answer.status_code, kind, answer.text)

    def call(self, subject: str, body: object = None, form: str = "") -> Any:
        """Return the answer to a call of the API."""
        text = "" if body is None else json.dumps(body)
        return json.loads(self.post(f"/jetstream/api/{subject}{form}", text).text)

    def fetch(self, names: str, query: str = "") -> Any:
        """Return the messages of a fetch."""
        return json.loads(self.post(f"/jetstream/fetch/{names}{query}").text)["messages"]

    def stream(self, name: str, consumer: str = "c") -> None:
        """Make a stream with subjects below its name, and a consumer."""
        config = {"name": name, "subjects": [f"{name}.>"]}
        assert "error" not in self.call(f"STREAM.CREATE.{name}", config)
        durable = {"durable_name": consumer, **CONSUMER["config"]}
        made = {"stream_name": name, "config": durable}
        assert "error" not in self.call(f"CONSUMER.CREATE.{name}.{consumer}", made)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Stack]]:
    started: list[Stack] = []

    def start(*flags: str, **settings: str) -> Stack:
        folder = tmp_path_factory.mktemp("jetstream")
        started.append(Stack(folder, "--workers", "1", *flags, **settings))
        started[-1].start()
        return started[-1]

    yield start
    for stack in started:
        stack.stop()


@pytest.fixture(scope="module")
def stack(stacks: Callable[..., Stack]) -> Stack:
    return stacks()


@pytest.fixture
def client(stack: Stack) -> HttpClient:
    return HttpClient(stack)


def test_the_seed_s_check_list_holds_item_by_item(client: HttpClient) -> None:
    off = Site({"jetstream_enabled": "no"})  # which asks no broker
    routers = jetstream.Routers(client, SiteClient(off))
    jetstream.prepare(client)
    for _, check in jetstream.CHECKLIST:
        check(routers)
    off.close()


def test_what_is_published_is_fetched_and_acknowledged_once(client: HttpClient) -> None:
    client.stream("LIFE")
    sent = [f"message {number}" for number in range(5)]
    for number, text in enumerate(sent, 1):
        line = client.post("/jetstream/publish/LIFE.a", text).text
        assert line == f"+OK stream=LIFE&sequence={number}"
    found = client.fetch("LIFE/c", "?batch=10")
    assert [(one["value"], one["deliveries"]) for one in found] == [(text, 1) for text in sent]
    tokens = [one["token"] for one in found]
    assert client.post("/jetstream/ack", "\n".join(tokens[:3])).text == "+OK"
    assert client.post("/jetstream/term", tokens[3]).text == "+OK"
    assert client.post("/jetstream/in-progress", tokens[4]).text == "+OK"
    assert client.post("/jetstream/nak", json.dumps({"token": tokens[4]})).text == "+OK"
    (again,) = client.fetch("LIFE/c", "?batch=10&expires=5000")
    assert (again["value"], again["deliveries"]) == (sent[4], 2)
    assert client.post("/jetstream/ack", again["token"]).text == "+OK"
    info = client.call("CONSUMER.INFO.LIFE.c")
    assert (info["num_ack_pending"], info["ack_floor"]["stream_seq"]) == (0, 5)


def test_a_fetch_waits_for_a_message_and_no_longer(client: HttpClient) -> None:
    client.stream("WAIT")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.fetch, "WAIT/c", "?expires=20000")
        wait_until(lambda: client.call("CONSUMER.INFO.WAIT.c")["num_waiting"] == 1)
        began = time.monotonic()
        client.post("/jetstream/publish/WAIT.a", "now")
        assert waiting.result(30)[0]["value"] == "now"
    assert time.monotonic() - began < 15
    began = time.monotonic()
    assert client.fetch("WAIT/c", "?expires=200") == []
    assert 0.15 < time.monotonic() - began < 15


def test_fetches_that_wait_hold_up_nothing(client: HttpClient, stack: Stack) -> None:
    """One worker, more waiting fetches than it has greenlets to spare, and a publish."""
    client.stream("MANY")
    address = urlsplit(stack.url)
    line = b"POST /jetstream/fetch/MANY/c?expires=30000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    waiting = [socket.create_connection((address.hostname, address.port or 0)) for _ in range(100)]
    try:
        for each in waiting:
            each.sendall(line)
        wait_until(lambda: client.call("CONSUMER.INFO.MANY.c")["num_waiting"] == 100)
        began = time.monotonic()
        assert client.post("/jetstream/publish/MANY.a", "x").status == 200
        assert time.monotonic() - began < 15
    finally:
        for each in waiting:
            each.close()
    wait_until(lambda: client.call("CONSUMER.INFO.MANY.c")["num_waiting"] == 0)


def test_a_client_that_left_takes_no_message(client: HttpClient, stack: Stack) -> None:
    client.stream("LEFT")
    address = urlsplit(stack.url)
    with socket.create_connection((address.hostname, address.port or 0)) as left:
        head = b"POST /jetstream/fetch/LEFT/c?expires=30000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        left.sendall(head)
        wait_until(lambda: client.call("CONSUMER.INFO.LEFT.c")["num_waiting"] == 1)
    wait_until(lambda: client.call("CONSUMER.INFO.LEFT.c")["num_waiting"] == 0)
    client.post("/jetstream/publish/LEFT.a", "for who stays")
    (found,) = client.fetch("LEFT/c", "?expires=5000")
    assert found["deliveries"] == 1


def test_a_broker_that_is_killed_is_waited_for(client: HttpClient, stack: Stack) -> None:
    client.stream("KILLED")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(HttpClient(stack).post, "/jetstream/fetch/KILLED/c?expires=60000")
        wait_until(lambda: client.call("CONSUMER.INFO.KILLED.c")["num_waiting"] == 1)
        os.kill(stack.broker(), signal.SIGKILL)
        assert client.call("STREAM.INFO.KILLED")["config"]["subjects"] == ["KILLED.>"]
        answer = waiting.result(30)
    assert (answer.status, json.loads(answer.text)["messages"]) == (503, [])
    assert json.loads(answer.text)["error"]["kind"] == "JetStreamUnavailable"
    assert client.post("/jetstream/publish/KILLED.a", "on").text == "+OK stream=KILLED&sequence=1"
    assert [one["value"] for one in client.fetch("KILLED/c", "?expires=5000")] == ["on"]


def test_a_device_reads_one_line(client: HttpClient, stack: Stack) -> None:
    client.stream("DEVICE")
    address = urlsplit(stack.url)
    with socket.create_connection((address.hostname, address.port or 0)) as device:
        device.sendall(
            b"POST /jetstream/publish/DEVICE.t HTTP/1.0\r\nContent-Length: 4\r\n\r\n21.5"
        )
        answer = b"".join(iter(lambda: device.recv(4096), b""))
    assert answer.rpartition(b"\r\n")[2] == b"+OK stream=DEVICE&sequence=1"


def test_form_v1_is_what_nats_answers(client: HttpClient) -> None:
    client.stream("FORMS")
    found = client.call("STREAM.INFO.FORMS", form="?form=v1")
    assert found["type"] == "io.nats.jetstream.api.v1.stream_info_response"
    assert not {"time"} & found.keys()
    line = client.post("/jetstream/publish/FORMS.a?form=v1", "x").text
    assert json.loads(line) == {"stream": "FORMS", "seq": 1}


@pytest.fixture(scope="module")
def guarded(
    stacks: Callable[..., Stack], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], HttpClient]:
    """A router with users; returns clients by their names."""
    folder = tmp_path_factory.mktemp("users")
    users = "".join(f"{name}:{HASHES['argon2']}\n" for name in ("anna", "bob", "eve"))
    (folder / "users").write_text(users)
    rules = "anna * manage,publish,subscribe\nbob RIGHTS publish\n"
    (folder / "permissions").write_text(rules)
    files = {"auth_users": folder / "users", "auth_permissions": folder / "permissions"}
    # Else the stream would be its creator's, who would have to list the others.
    stack = stacks(acl_enforce="false", **{name: str(file) for name, file in files.items()})
    return lambda name: HttpClient(stack, (name, "secret") if name else None)


def test_rights_are_those_of_the_principal(guarded: Callable[[str], HttpClient]) -> None:
    anna, bob, eve, nobody = map(guarded, ("anna", "bob", "eve", ""))
    anna.stream("RIGHTS")
    assert bob.post("/jetstream/publish/RIGHTS.a", "x").status == 200
    for client, status in ((eve, 403), (nobody, 401)):
        reply = client.post("/jetstream/publish/RIGHTS.a", "x")
        assert (reply.status, reply.text[:4]) == (status, "-ERR")
    assert anna.call("STREAM.LIST")["streams"] == bob.call("STREAM.LIST")["streams"] == ["RIGHTS"]
    assert eve.call("STREAM.LIST")["streams"] == []
    assert eve.call("STREAM.INFO.RIGHTS")["error"]["code"] == 10059
    for subject in ("STREAM.DELETE.RIGHTS", "STREAM.PURGE.RIGHTS"):
        assert "error" in bob.call(subject), subject
    assert [c.post("/jetstream/fetch/RIGHTS/c").status for c in (bob, eve)] == [403, 404]
    (taken,) = anna.fetch("RIGHTS/c")
    refused = [client.post("/jetstream/ack", taken["token"]) for client in (bob, eve)]
    assert [(reply.status, reply.text[:4]) for reply in refused] == [(403, "-ERR"), (404, "-ERR")]
    assert anna.call("CONSUMER.INFO.RIGHTS.c")["num_ack_pending"] == 1


def test_a_waiting_fetch_is_answered_when_the_router_stops(
    guarded: Callable[[str], HttpClient],
) -> None:
    """The last test of that router."""
    client = guarded("anna")
    client.stream("STOP")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(guarded("anna").fetch, "STOP/c", "?expires=60000")
        wait_until(lambda: client.call("CONSUMER.INFO.STOP.c")["num_waiting"] == 1)
        began = time.monotonic()
        client.stack.stop()
        assert waiting.result(20) == []
    assert time.monotonic() - began < 9
