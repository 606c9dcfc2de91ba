"""The legacy Java client, unchanged, against the product as users start it: all of its modes."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.processes import wait_until
from tests.servers.certificates import Authority
from tests.system.cambria.client import Cambria, compiled, running
from tests.system.stack import Stack
from tests.unit.web.applications import HASHES

pytestmark = [pytest.mark.system, pytest.mark.java, pytest.mark.timeout(120)]

MESSAGES = [["k", "plain"], ["", "no key"], ["é€", "größer \u20ac 🚀"], ["k", '{"a": [1, "<b>/"]}']]

# Which of the two it is where, the router's own tests say; the client raises the same.
REFUSED = {401, 403}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The router with owners and access lists that count; topics without an owner are open."""
    made = Stack(tmp_path_factory.mktemp("stack"), "--workers", "2", acl_enforce="true")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cambria(classes: Path, stack: Stack) -> Iterator[Cambria]:
    with running(classes, f"127.0.0.1:{stack.port}") as client:
        yield client


def new_key(cambria: Cambria) -> dict[str, str]:
    made = cambria.order("createKey", email="", description="d")
    assert set(made) == {"key", "secret"}, made
    return made


@pytest.fixture
def topic() -> str:
    return f"org.onap.dmaap.{secrets.token_hex(6)}"


def joined(cambria: Cambria, topic: str, **who: str) -> Callable[[], list[str]]:
    """Register a group on a new topic, and return what collects the group's messages."""
    seat = {"topic": topic, "group": "g", "id": "1", **who}
    assert cambria.order("consume", **seat, timeout=0, limit=10) == {"messages": []}

    def collect() -> list[str]:
        found: list[str] = []

        def complete() -> bool:
            answer = cambria.order("consume", **seat, timeout=500, limit=3)
            found.extend(answer["messages"])
            return len(found) >= len(MESSAGES)

        wait_until(complete)
        return found

    return collect


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])
def test_what_it_publishes_it_consumes(cambria: Cambria, topic: str, compressed: bool) -> None:
    assert cambria.order("create", topic=topic, description="d") == {}
    collect = joined(cambria, topic)
    sent = cambria.order("publish", topic=topic, messages=MESSAGES, compressed=compressed)
    assert sent == {"unsent": 0}
    assert sorted(collect()) == sorted(text for _, text in MESSAGES)


def test_a_batch_in_many_requests_keeps_the_order_of_a_key(cambria: Cambria, topic: str) -> None:
    assert cambria.order("create", topic=topic, description="d", partitions=3) == {}
    seat: dict[str, Any] = {"topic": topic, "group": "g", "id": "1"}
    assert cambria.order("consume", **seat, timeout=0, limit=10) == {"messages": []}
    texts = [str(number) for number in range(50)]
    pairs = [["one", text] for text in texts]
    assert cambria.order("publish", topic=topic, messages=pairs, batch=7) == {"unsent": 0}
    found: list[str] = []

    def complete() -> bool:
        found.extend(cambria.order("consume", **seat, timeout=500, limit=20)["messages"])
        return len(found) >= len(texts)

    wait_until(complete)
    assert found == texts


def test_a_key_is_made_shown_changed_and_deleted(cambria: Cambria) -> None:
    key = new_key(cambria)
    shown = cambria.order("getKey", name=key["key"])
    assert shown == {"email": "", "description": "d"}
    assert cambria.order("updateKey", email="a@example.org", description="new", **key) == {}
    shown = cambria.order("getKey", name=key["key"])
    assert shown == {"email": "a@example.org", "description": "new"}
    assert cambria.order("deleteKey", **key) == {}
    assert cambria.order("getKey", name=key["key"])["status"] == 404


def test_a_key_is_its_owners_alone(cambria: Cambria) -> None:
    key, other = new_key(cambria), new_key(cambria)
    forged = {"key": key["key"], "secret": other["secret"]}
    assert cambria.order("deleteKey", **forged)["status"] == 404
    assert cambria.order("updateKey", email="", description="x", **forged)["status"] == 404
    assert cambria.order("getKey", name=key["key"])["description"] == "d"


def test_a_topic_is_made_listed_described_and_deleted(cambria: Cambria, topic: str) -> None:
    owner = new_key(cambria)
    assert cambria.order("create", topic=topic, description="what it is for", **owner) == {}
    assert topic in cambria.order("list")["topics"]
    described = cambria.order("describe", topic=topic, **owner)
    assert (described["owner"], described["description"]) == (owner["key"], "what it is for")
    assert cambria.order("delete", topic=topic)["status"] in REFUSED
    assert cambria.order("delete", topic=topic, **owner) == {}
    assert topic not in cambria.order("list")["topics"]
    assert cambria.order("describe", topic=topic)["status"] == 404


def test_who_is_allowed_publishes_until_it_is_revoked(cambria: Cambria, topic: str) -> None:
    owner, other = new_key(cambria), new_key(cambria)
    assert cambria.order("create", topic=topic, description="d", **owner) == {}

    def unsent(who: dict[str, str]) -> int:
        answer = cambria.order("publish", topic=topic, messages=[["k", "m"]], wait=1000, **who)
        return int(answer["unsent"])

    assert (unsent(owner), unsent(other), unsent({})) == (0, 1, 1)
    denied = cambria.order("allowProducer", topic=topic, other=other["key"], **other)
    assert denied["status"] in REFUSED
    assert cambria.order("allowProducer", topic=topic, other=other["key"], **owner) == {}
    assert other["key"] in cambria.order("describe", topic=topic, **owner)["producers"]
    wait_until(lambda: unsent(other) == 0)
    assert cambria.order("revokeProducer", topic=topic, other=other["key"], **owner) == {}
    assert other["key"] not in cambria.order("describe", topic=topic, **owner)["producers"]
    wait_until(lambda: unsent(other) == 1)


def test_who_is_allowed_consumes_until_it_is_revoked(cambria: Cambria, topic: str) -> None:
    owner, other = new_key(cambria), new_key(cambria)
    assert cambria.order("create", topic=topic, description="d", **owner) == {}

    def poll(who: dict[str, str]) -> dict[str, Any]:
        seat = {"topic": topic, "group": who.get("key", "none"), "id": "1", **who}
        return cambria.order("consume", **seat, timeout=0, limit=10)

    assert poll(owner) == {"messages": []}
    assert {poll(other)["status"], poll({})["status"]} <= REFUSED
    assert cambria.order("allowConsumer", topic=topic, other=other["key"], **owner) == {}
    assert other["key"] in cambria.order("describe", topic=topic, **owner)["consumers"]
    wait_until(lambda: poll(other) == {"messages": []})
    assert cambria.order("revokeConsumer", topic=topic, other=other["key"], **owner) == {}
    assert other["key"] not in cambria.order("describe", topic=topic, **owner)["consumers"]
    wait_until(lambda: poll(other).get("status") in REFUSED)


def test_owners_do_not_count_where_nothing_is_enforced(
    classes: Path, router: Stack, topic: str
) -> None:
    with running(classes, f"127.0.0.1:{router.port}") as cambria:
        owner = new_key(cambria)
        assert cambria.order("create", topic=topic, description="d", **owner) == {}
        collect = joined(cambria, topic)
        assert cambria.order("publish", topic=topic, messages=MESSAGES) == {"unsent": 0}
        assert len(collect()) == len(MESSAGES)


def test_it_speaks_https_and_gives_its_password(classes: Path, tmp_path: Path, topic: str) -> None:
    authority = Authority(tmp_path / "authority")
    own = authority.issue("router")
    tls_port, users = free_port(), tmp_path / "users"
    users.write_text(f"alice:{HASHES['bcrypt']}\n")
    files = {"server_cert": str(own.cert), "server_key": str(own.key)}
    stack = Stack(tmp_path, server_tls_port=str(tls_port), auth_users=str(users), **files)
    stack.start()
    trust = trusted(authority.ca, tmp_path / "trust")
    try:
        with running(classes, f"127.0.0.1:{tls_port}", *trust, https="true") as cambria:
            login = {"user": "alice", "password": "secret"}
            assert cambria.order("create", topic=topic, description="d")["status"] == 401
            assert cambria.order("create", topic=topic, description="d", **login) == {}
            collect = joined(cambria, topic, **login)
            sent = cambria.order("publish", topic=topic, messages=MESSAGES, **login)
            assert sent == {"unsent": 0}
            assert len(collect()) == len(MESSAGES)
    finally:
        stack.stop()


def trusted(ca: Path, store: Path) -> list[str]:
    """Return the properties of a JVM that trusts an authority."""
    command = ["keytool", "-importcert", "-noprompt", "-file", str(ca), "-keystore", str(store)]
    command += ["-storepass", "trusted", "-alias", "tests"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStorePassword=trusted",
    ]
