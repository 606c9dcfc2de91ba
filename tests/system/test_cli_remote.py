"""The commands on a router elsewhere: a real one, over HTTP and HTTPS, killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli import status
from tests.ports import free_port
from tests.processes import wait_until
from tests.servers.certificates import Authority
from tests.system.stack import Stack

pytestmark = pytest.mark.system

ROUTER = [sys.executable, "-m", "router"]
SECONDS = 60


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Where the router serves HTTPS, and who signed its certificate."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    authority.issue("server")
    return f"https://127.0.0.1:{free_port()}", authority.ca


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, https: tuple[str, Path]) -> Iterator[Stack]:
    """A router with users, over HTTP and HTTPS, for all tests of this module."""
    folder = tmp_path_factory.mktemp("stack")
    url, ca = https
    tls = ["--cert", str(ca.with_name("server.pem")), "--key", str(ca.with_name("server.key"))]
    tls += ["--tls-port", url.rpartition(":")[2]]
    users = folder / "users"
    subprocess.run(
        [*ROUTER, "user", "add", "anna", "--password-stdin", "--file", str(users)],
        input=b"secret\n",
        check=True,
        timeout=SECONDS,
    )
    made = Stack(folder, "--workers", "2", *tls, auth_users=str(users), pip64_ack_timeout="3s")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def environ(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """An environment with a context for the router, in use."""
    found = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "ROUTER_PASSWORD": "secret"}
    command = [*ROUTER, "context", "add", "there", "--server", stack.url, "--user", "anna"]
    subprocess.run(command, env=found, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)
    del found["ROUTER_PASSWORD"]
    return found


def router(
    environ: dict[str, str], *arguments: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*ROUTER, *arguments],
        env=environ,
        input=given,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )


def printed(environ: dict[str, str], *arguments: str, given: bytes = b"") -> bytes:
    result = router(environ, *arguments, given=given)
    assert result.returncode == 0, result.stderr
    return result.stdout


def started(environ: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*ROUTER, *arguments],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_newest_values_of_a_compacted_topic_are_printed(environ: dict[str, str]) -> None:
    printed(environ, "topics", "create", "prices", "--cleanup-policy", "compact")
    for key, value in (("a/b", b"1"), ("milk", b"2")):
        printed(environ, "pub", "prices", "--key", key, given=value)
    assert printed(environ, "topics", "latest", "prices") == b"a/b   1\nmilk  2\n"
    assert printed(environ, "topics", "latest", "prices", "a/b") == b"1\n"
    found = json.loads(printed(environ, "topics", "latest", "prices", "--limit", "1", "--json"))
    assert [one["key"] for one in found["values"]] == ["a/b"]
    after = printed(environ, "topics", "latest", "prices", "--after", found["next"])
    assert after == b"milk  2\n"
    for topic, key in (("prices", "absent"), ("absent", "a")):
        result = router(environ, "topics", "latest", topic, key)
        assert result.returncode == status.NOT_FOUND
        assert topic in result.stderr.decode() or key in result.stderr.decode()
    printed(environ, "topics", "delete", "prices")


def test_commands_work_there(environ: dict[str, str]) -> None:
    printed(environ, "topics", "create", "orders", "--partitions", "2")
    given = b'{"key":"k","value_base64":"/w==","headers":{"a":"\xc3\xa9"}}\n{"value":""}\n'
    printed(environ, "pub", "orders", "--format", "ndjson", given=given)
    for group in ((), ("--group", "g")):
        read = ("sub", "orders", "--from", "earliest", "--count", "2", "--json", *group)
        found = map(json.loads, printed(environ, *read).splitlines())
        assert sorted((one["key"] or "", one.get("value", "-")) for one in found) == [
            ("", ""),
            ("k", "-"),
        ]
    assert b"g  " in printed(environ, "groups", "list", "orders")
    assert json.loads(printed(environ, "groups", "show", "orders", "g", "--json"))["backlog"] == 0
    assert printed(environ, "topics", "list") == b"orders  2\n"
    assert (
        json.loads(printed(environ, "bench", "latency", "--messages", "20", "--json"))["lost"] == 0
    )
    printed(environ, "topics", "delete", "orders")
    assert b"as anna" in printed(environ, "check")


def test_strangers_are_refused(stack: Stack, tmp_path: Path) -> None:
    environ = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "ROUTER_PASSWORD": "xyzzy"}
    for more in ((), ("--user", "anna")):
        result = router(environ, "topics", "list", "--server", stack.url, *more)
        assert result.returncode == status.REFUSED
        assert result.stderr.count(b"\n") == 1
        assert b"xyzzy" not in result.stderr


@pytest.mark.parametrize("data", [b"\x00\xff" * 4_000, b"no line end"], ids=["binary", "text"])
def test_all_of_an_input_is_one_message(environ: dict[str, str], data: bytes) -> None:
    topic = f"raw-{len(data)}"
    printed(environ, "pub", topic, "--format", "raw", given=data)
    read = ("sub", topic, "--from", "earliest", "--count", "1", "--format", "raw")
    assert printed(environ, *read) == data


def test_a_message_that_is_too_large_is_named_and_what_came_before_is_stored(
    environ: dict[str, str],
) -> None:
    big = b"small\n" + b"x" * 2_000_000
    result = router(environ, "pub", "big", given=big)
    assert result.returncode == status.BAD_DATA
    assert b"2000000 bytes" in result.stderr
    assert printed(environ, "sub", "big", "--from", "earliest", "--no-follow") == b"small\n"


def test_ctrl_c_ends_sub_and_interrupts_pub(environ: dict[str, str]) -> None:
    printed(environ, "topics", "create", "news")
    tail = started(environ, "sub", "news", "--group", "g")
    wait_until(lambda: b"g  " in printed(environ, "groups", "list", "news"))
    with started(environ, "pub", "news") as publishing:
        assert publishing.stdin is not None
        assert tail.stdout is not None
        publishing.stdin.write(b"flash\n")
        publishing.stdin.flush()
        assert tail.stdout.readline() == b"flash\n"
        publishing.send_signal(signal.SIGINT)
        assert publishing.wait(SECONDS) == status.INTERRUPTED
    tail.send_signal(signal.SIGINT)
    _, errors = tail.communicate(timeout=SECONDS)
    assert (tail.returncode, errors) == (0, b"")
    assert _backlog(environ, "news") == [0]


def test_an_output_that_closes_ends_sub_silently(environ: dict[str, str]) -> None:
    printed(environ, "pub", "long", given=b"line\n" * 50_000)
    with started(environ, "sub", "long", "--from", "earliest") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.wait(SECONDS) == status.OUTPUT_CLOSED
        assert tail.stderr.read() == b""


def test_nothing_is_lost_or_stored_twice_when_the_router_is_killed(
    stack: Stack, environ: dict[str, str]
) -> None:
    """Lines are published while everything is killed and comes back; two readers go on."""
    printed(environ, "topics", "create", "killed")
    expected = [b"%d" % number for number in range(300)]
    tail = started(environ, "sub", "killed", "--from", "earliest", "--count", "300")
    group = started(environ, "sub", "killed", "--group", "g", "--from", "earliest")
    publishing = started(environ, "pub", "killed")
    assert publishing.stdin is not None
    first, last = expected[:150], expected[150:]
    publishing.stdin.write(b"\n".join(first) + b"\n")
    publishing.stdin.flush()
    assert tail.stdout is not None
    seen = [tail.stdout.readline().strip() for _ in first]
    assert group.stdout is not None
    had = [group.stdout.readline().strip() for _ in first]
    stack.kill()
    feeding = threading.Thread(
        target=publishing.communicate, args=(b"\n".join(last),), kwargs={"timeout": SECONDS}
    )
    feeding.start()
    stack.start()
    feeding.join(SECONDS)
    assert publishing.returncode == 0
    rest, errors = tail.communicate(timeout=SECONDS)
    assert tail.returncode == 0, errors
    assert seen + rest.splitlines() == expected
    wait_until(lambda: group.poll() is not None or _backlog(environ, "killed") == [0], SECONDS - 15)
    group.send_signal(signal.SIGINT)
    consumed, errors = group.communicate(timeout=SECONDS)
    assert group.returncode == 0, errors
    assert {*had, *consumed.splitlines()} == set(expected)


def test_https_needs_an_authority_that_is_trusted(
    https: tuple[str, Path], environ: dict[str, str]
) -> None:
    url, ca = https
    environ["ROUTER_PASSWORD"] = "secret"
    there = ("--server", url, "--user", "anna")
    result = router(environ, "topics", "list", *there)
    assert result.returncode == status.UNREACHABLE
    assert b"TLS: unable to get local issuer certificate. (--ca FILE" in result.stderr
    printed(environ, "pub", "safe", *there, "--ca", str(ca), given=b"x\n")
    read = ("sub", "safe", "--from", "earliest", "--count", "1")
    assert printed(environ, *read, *there, "--ca", str(ca)) == b"x\n"


def _backlog(environ: dict[str, str], topic: str) -> list[int]:
    listed = json.loads(printed(environ, "groups", "list", topic, "--json"))
    return [one["backlog"] for one in listed]
