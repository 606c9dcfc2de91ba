"""deploy/nginx: a real nginx sends each request where it belongs, once, and waits long enough."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.settings import duration, load, size
from tests.deploy.nginx import Nginx
from tests.deploy.tools import DEPLOY, run
from tests.deploy.upstreams import Seen, Upstream
from tests.ports import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def nodes() -> Iterator[list[Upstream]]:
    with Upstream() as one, Upstream() as two:
        yield [one, two]


@pytest.fixture
def nginx(tmp_path: Path, nodes: list[Upstream]) -> Iterator[Nginx]:
    with Nginx(tmp_path / "nginx", free_port(), [node.port for node in nodes]) as running:
        yield running


def ask(
    nginx: Nginx, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """Send one request on a connection of its own."""
    client = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client.request(method, path, body or None, named)
    answer = client.getresponse()
    found = answer.status, answer.read()
    client.close()
    return found


def seen(nodes: list[Upstream]) -> list[Seen]:
    """Return what reached any node."""
    return [request for node in nodes for request in node.script.seen]


def said(name: str) -> str:
    """Return the value of a directive of router.conf that is there once."""
    text = (DEPLOY / "nginx" / "router.conf").read_text(encoding="utf-8")
    found = re.findall(rf"^\s*{name} (\S+);", text, re.MULTILINE)
    assert len(found) == 1, name
    return str(found[0])


def test_configuration_is_valid(tmp_path: Path) -> None:
    checked = run(*Nginx(tmp_path, free_port(), [3904, 3905]).command("-t", "-q"))
    assert (checked.returncode, checked.stderr) == (0, "")


def test_check_fails_when_the_configuration_is_wrong(tmp_path: Path) -> None:
    changes = {"hash $router_group consistent;": "hash $absent consistent;"}
    checked = run(*Nginx(tmp_path, free_port(), [3904], changes).command("-t", "-q"))
    assert checked.returncode != 0
    assert "absent" in checked.stderr


def test_polls_of_a_group_reach_one_node(nginx: Nginx, nodes: list[Upstream]) -> None:
    for group in range(12):
        for consumer in range(4):
            assert ask(nginx, "GET", f"/events/t/g{group}/c{consumer}?timeout=1")[0] == 200
    places = [{request.path.split("/")[3] for request in node.script.seen} for node in nodes]
    assert places[0] | places[1] == {f"g{group}" for group in range(12)}
    assert not places[0] & places[1]
    assert all(places)


def test_posts_reach_the_nodes_in_turn(nginx: Nginx, nodes: list[Upstream]) -> None:
    for _ in range(20):
        assert ask(nginx, "POST", "/events/t", b"x")[0] == 200
    assert min(len(node.script.seen) for node in nodes) >= 5


def test_long_poll_passes(nginx: Nginx) -> None:
    assert ask(nginx, "GET", "/events/t/g/c?wait=1500") == (200, b"[  ]")


def test_read_timeout_is_what_ends_a_poll(tmp_path: Path, nodes: list[Upstream]) -> None:
    changes = {"proxy_read_timeout 150s;": "proxy_read_timeout 1s;"}
    changes["proxy_next_upstream error timeout;"] = "proxy_next_upstream error;"
    ports = [node.port for node in nodes]
    with Nginx(tmp_path / "nginx", free_port(), ports, changes) as nginx:
        assert ask(nginx, "GET", "/events/t/g/c?wait=5000")[0] == 504


def test_read_timeout_is_longer_than_any_answer_may_take() -> None:
    settings = load(None, {})
    for name in ("consume.max_timeout", "publish.timeout", "backend.timeout"):
        assert duration(said("proxy_read_timeout")) >= settings.seconds(name) + 15


def test_body_limit_is_a_little_over_the_largest_batch() -> None:
    largest = load(None, {}).number("publish.max_batch")
    assert largest < size(said("client_max_body_size")) <= largest + (2 << 20)


def test_body_over_the_limit_is_refused_in_json(nginx: Nginx, nodes: list[Upstream]) -> None:
    client = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=30)
    client.putrequest("POST", "/events/t")
    client.putheader("Content-Length", str(64 << 20))
    client.endheaders()
    answer = client.getresponse()
    assert (answer.status, json.loads(answer.read())["mrErrorCode"]) == (413, 3001)
    client.close()
    assert not seen(nodes)


@pytest.mark.parametrize(("method", "path"), [("POST", "/events/t"), ("GET", "/events/t/g/c")])
def test_a_pause_answers_each_request_with_what_its_client_repeats(
    tmp_path: Path, nodes: list[Upstream], method: str, path: str
) -> None:
    changes = {"# include router-hold.conf;": "include router-hold.conf;"}
    with Nginx(tmp_path / "nginx", free_port(), [nodes[0].port], changes) as nginx:
        client = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=30)
        client.request(method, path, b"a" if method == "POST" else None)
        answer = client.getresponse()
        body = json.loads(answer.read())
        client.close()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert answer.headers["Content-Type"] == "application/json"
    assert (body["httpStatusCode"], body["mrErrorCode"]) == (503, 3002)
    assert seen(nodes) == []


def test_post_that_was_sent_is_not_sent_again(nginx: Nginx, nodes: list[Upstream]) -> None:
    for node in nodes:
        node.script.leave = True
    status, body = ask(nginx, "POST", "/events/t", b"x")
    assert (status, json.loads(body)["mrErrorCode"]) == (504, 3006)
    assert len(seen(nodes)) == 1


def test_poll_that_lost_its_node_is_sent_to_the_other(nginx: Nginx, nodes: list[Upstream]) -> None:
    assert ask(nginx, "GET", "/events/t/g/c")[0] == 200
    holder = next(node for node in nodes if node.script.seen)
    holder.script.leave = True
    assert ask(nginx, "GET", "/events/t/g/c") == (200, b"[  ]")
    assert len(seen(nodes)) == 3


def test_post_goes_to_the_other_node_when_one_is_away(tmp_path: Path) -> None:
    with (
        Upstream() as alive,
        Nginx(tmp_path / "nginx", free_port(), [free_port(), alive.port]) as nginx,
    ):
        assert {ask(nginx, "POST", "/events/t", b"x")[0] for _ in range(10)} == {200}
        assert len(alive.script.seen) == 10


def test_answers_are_not_kept_back(nginx: Nginx, nodes: list[Upstream]) -> None:
    client = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=5)
    client.request("GET", "/events/t/g/c?parts=2")
    answer = client.getresponse()
    assert answer.read(2) == b"[ "
    for node in nodes:
        node.script.release.set()
    assert answer.read() == b" ]"
    client.close()


def test_body_is_collected_before_a_node_hears_of_it(nginx: Nginx, nodes: list[Upstream]) -> None:
    with socket.create_connection(("127.0.0.1", nginx.port), 10) as client:
        client.sendall(b"POST /events/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab")
        assert not nodes[0].script.begun.wait(0.3)
        assert not nodes[1].script.begun.is_set()
        client.sendall(b"cd")
        assert client.recv(12) == b"HTTP/1.1 200"
    assert [request.body for request in seen(nodes)] == [4]


def test_forwarded_headers_say_who_asked(nginx: Nginx, nodes: list[Upstream]) -> None:
    ask(nginx, "POST", "/events/t", b"x", X_Forwarded_For="1.2.3.4")
    headers = seen(nodes)[0].headers
    assert headers["x-forwarded-for"] == "1.2.3.4, 127.0.0.1"
    assert headers["x-forwarded-proto"] == "http"
    assert headers["x-forwarded-port"] == str(nginx.port)
    assert headers["host"] == headers["x-forwarded-host"] == f"127.0.0.1:{nginx.port}"


def test_forwarded_headers_of_clients_go_no_further(nginx: Nginx, nodes: list[Upstream]) -> None:
    forged = {"X_Forwarded_Prefix": "/a", "X_Forwarded_Host": "evil", "X_Forwarded_Proto": "https"}
    ask(nginx, "POST", "/events/t", b"x", Forwarded="for=1.2.3.4", **forged)
    headers = seen(nodes)[0].headers
    assert "forwarded" not in headers
    assert "x-forwarded-prefix" not in headers
    assert headers["x-forwarded-host"] != "evil"
    assert headers["x-forwarded-proto"] == "http"


def test_connections_to_the_nodes_are_kept(nginx: Nginx, nodes: list[Upstream]) -> None:
    client = http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=5)
    for _ in range(6):
        client.request("GET", "/events/t/g/c")
        client.getresponse().read()
    client.close()
    assert len({request.connection for request in seen(nodes)}) == 1
