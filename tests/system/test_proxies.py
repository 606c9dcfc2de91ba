"""The router behind an nginx that knows nothing of it: a prefix, long polls, uploads, TLS."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.servers.certificates import Authority
from tests.servers.nginx import Nginx
from tests.system.stack import Stack

pytestmark = pytest.mark.system

READ_TIMEOUT = 2
TEXT = {"Content-Type": "text/plain"}
# /mr/ is how most operators write it, with what nginx does by default; /raw/ hands everything on at
# once; /short/ gives up on polls; /tls/ speaks HTTPS to the router and trusts one authority.
SECTIONS = """
    server {{
        listen 127.0.0.1:{port};
        listen 127.0.0.1:{secure} ssl;
        ssl_certificate {cert}; ssl_certificate_key {key};
        client_max_body_size 0;
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
        proxy_set_header X-Forwarded-Prefix /mr;
        location /mr/ {{ proxy_pass http://127.0.0.1:{router}/; }}
        location /raw/ {{
            proxy_pass http://127.0.0.1:{router}/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_buffering off;
        }}
        location /short/ {{
            proxy_pass http://127.0.0.1:{router}/;
            proxy_read_timeout {read_timeout}s;
        }}
        location /tls/ {{
            proxy_pass https://127.0.0.1:{router_tls}/;
            proxy_ssl_trusted_certificate {ca};
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
        }}
    }}
"""


class Site:
    """The proxy's ports, and requests to it."""

    def __init__(self, port: int, secure: int, ca: Path) -> None:
        self.port = port
        self.secure = secure
        self._ca = ca

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        source: str = "127.0.0.1",
        **headers: str,
    ) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and JSON of one request on a connection of its own."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=30, source_address=(source, 0)
        )
        return _ask(connection, method, path, body, headers)

    def ask_securely(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Any]:
        """Do the same with HTTPS between client and proxy."""
        context = ssl.create_default_context(cafile=str(self._ca))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.secure, timeout=30, context=context
        )
        return _ask(connection, method, path, body, {})


def _ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any,
    headers: dict[str, str],
) -> tuple[int, dict[str, str], Any]:
    try:
        connection.request(method, path, body, TEXT | headers if body is not None else headers)
        answer = connection.getresponse()
        content = answer.read()
        kind = answer.headers.get("Content-Type", "")
        return (
            answer.status,
            {name.lower(): value for name, value in answer.headers.items()},
            json.loads(content) if kind.startswith("application/json") else content,
        )
    finally:
        connection.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    authority = Authority(folder / "authority")
    own = authority.issue("router")
    tls_port, port, secure = free_port(), free_port(), free_port()
    stack = Stack(
        folder,
        *("--workers", "2"),
        server_cert=str(own.cert),
        server_key=str(own.key),
        server_tls_port=str(tls_port),
        server_trusted_proxies="127.0.0.1",
    )
    front = authority.issue("proxy")
    sections = SECTIONS.format(
        port=port,
        secure=secure,
        cert=front.cert,
        key=front.key,
        ca=authority.ca,
        router=stack.port,
        router_tls=tls_port,
        read_timeout=READ_TIMEOUT,
    )
    stack.start()
    try:
        with Nginx(folder / "nginx", port, sections):
            yield Site(port, secure, authority.ca)
    finally:
        stack.stop()


@pytest.mark.parametrize("prefix", ["/mr", "/raw", "/tls"])
def test_what_is_published_under_a_prefix_is_consumed_there(site: Site, prefix: str) -> None:
    topic = f"under{prefix[1:]}"
    seat = f"{prefix}/events/{topic}/g/1"
    assert site.ask("POST", f"{prefix}/topics/create", json.dumps({"topicName": topic}))[0] == 200
    assert site.ask("GET", f"{seat}?timeout=0")[2] == []
    assert site.ask("POST", f"{prefix}/events/{topic}", "one\ntwo")[2]["count"] == 2
    assert site.ask("GET", f"{seat}?timeout=5000")[2] == ["one", "two"]
    assert topic in site.ask("GET", f"{prefix}/topics")[2]["topics"]


def test_a_client_on_https_is_served_as_one_on_http(site: Site) -> None:
    assert site.ask_securely("POST", "/mr/events/secure", "one")[2]["count"] == 1
    polled = site.ask_securely("GET", "/mr/events/secure/g/1?from=earliest&timeout=5000")
    assert polled[::2] == (200, ["one"])


def test_a_message_reaches_a_waiting_poll_at_once(site: Site) -> None:
    seat = "/mr/events/waited/g/1"
    site.ask("POST", "/mr/events/waited", "first")
    assert site.ask("GET", f"{seat}?from=earliest&timeout=0")[2] == ["first"]
    found: list[Any] = []
    poll = threading.Thread(
        target=lambda: found.append(site.ask("GET", f"{seat}?timeout=20000")[2])
    )
    poll.start()
    poll.join(READ_TIMEOUT + 1)
    assert not found
    site.ask("POST", "/mr/events/waited", "second")
    poll.join(10)
    assert found == [["second"]]


def test_a_poll_that_the_proxy_gave_up_loses_nothing(site: Site) -> None:
    site.ask("POST", "/short/events/given", "first")
    seat = "/short/events/given/g/1"
    assert site.ask("GET", f"{seat}?from=earliest&timeout=0")[2] == ["first"]
    assert site.ask("GET", f"{seat}?timeout=20000")[0] == 504
    site.ask("POST", "/short/events/given", "second")
    assert site.ask("GET", f"{seat}?timeout=1500")[2] == ["second"]


@pytest.mark.parametrize("prefix", ["/mr", "/raw"])
def test_a_chunked_upload_is_read_whole(site: Site, prefix: str) -> None:
    lines = [b"%d\n" % number for number in range(2_000)]
    answer = site.ask("POST", f"{prefix}/events/chunked", iter(lines))
    assert (answer[0], answer[2]["count"]) == (200, len(lines))


def test_a_body_over_the_limit_is_refused_in_words(site: Site) -> None:
    status, _, said = site.ask("POST", "/raw/events/big", b"x" * 40_000_000)
    assert (status, said["mrErrorCode"]) == (413, 3001)


def test_a_client_is_known_by_the_address_that_the_proxy_saw(site: Site) -> None:
    claims = {"X-Forwarded-For": "203.0.113.9"}
    headers = site.ask("POST", "/mr/events/seen", "one", source="127.0.0.2", **claims)[1]
    assert headers["transactionid"].split("::")[2] == "127.0.0.2"


@pytest.mark.parametrize("path", ["/topics/", "/events//t", "/nowhere/", "/events/t/"])
def test_no_answer_leads_out_of_the_prefix(site: Site, path: str) -> None:
    status, headers, said = site.ask("GET", f"/mr{path}")
    assert "location" not in headers
    assert status in {200, 404, 405}, said


def test_a_pip64_consumer_is_found_at_its_base_uri(site: Site) -> None:
    """`base_uri` leads through the proxy, prefix and scheme included, to any worker."""
    at = "/topics/public/default/rest"
    site.ask("POST", "/mr/events/rest", "make it")
    created = site.ask("POST", f"/mr{at}/subscription/s", json.dumps({"start": "earliest"}))[2]
    base = created["base_uri"]
    assert base == f"http://127.0.0.1:{site.port}/mr{at}/subscription/s/consumer/{created['id']}"
    produced = site.ask("POST", f"/mr{at}", json.dumps({"messages": [{"value": "one"}]}))
    assert produced[0] == 200
    path = base.removeprefix(f"http://127.0.0.1:{site.port}")
    found = site.ask("GET", f"{path}/messages?timeout=5000")[2]["messages"]
    assert [message["value"] for message in found] == ["make it", "one"]
    assert site.ask("DELETE", path)[0] == 204
    secure = site.ask_securely("POST", f"/mr{at}/subscription/s", "{}")[2]["base_uri"]
    assert secure.startswith(f"https://127.0.0.1:{site.secure}/mr{at}/")


def test_a_stream_comes_through_as_it_is_written(site: Site) -> None:
    """What nginx does by default would hold events back: the answer asks it not to."""
    site.ask("POST", "/mr/events/streamed", "first")
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    try:
        connection.request("GET", "/mr/events/streamed?stream&from=earliest")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert _next_value(answer) == "first"
        site.ask("POST", "/mr/events/streamed", "second")
        assert _next_value(answer) == "second"
    finally:
        connection.close()


def _next_value(answer: http.client.HTTPResponse) -> Any:
    for line in answer:
        if line.startswith(b"data: "):
            return json.loads(line.removeprefix(b"data: "))["value"]
    raise AssertionError("the stream ended")
