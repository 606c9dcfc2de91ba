"""The router's own Pulsar client against a broker that asks who it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from router.backends import Backend, Batch
from router.backends.pulsar import open_backend
from router.errors import (
    BackendUnavailableError,
    CredentialsRefusedError,
    NotAllowedError,
    SettingError,
)
from router.model import NOT_PARTITIONED, Message, TopicName
from router.settings import load
from tests.broker.guarded import Guarded
from tests.processes import wait_until

WAIT = 10.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with Guarded(tmp_path_factory.mktemp("guarded")) as guarded:
        yield guarded


@pytest.fixture
def topic() -> TopicName:
    return TopicName.parse(f"orders.{uuid4().hex}")


@pytest.fixture
def opened() -> Iterator[list[Backend]]:
    """What is opened is closed after the test."""
    backends: list[Backend] = []
    yield backends
    for backend in backends:
        backend.close()


def connected(broker: Guarded, secure: bool, **given: str) -> Backend:
    settings = {f"pulsar.{name}": text for name, text in given.items()}
    if secure:
        settings.setdefault("pulsar.ca", str(broker.authority.ca))
    return open_backend(broker.url(secure=secure), load(None, {}, settings), None)


def publish(backend: Backend, topic: TopicName, timeout: float = WAIT) -> None:
    backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"v")]), timeout)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kept", ["token", "token_file"])
def test_token_of_the_settings_lets_the_router_publish(
    broker: Guarded,
    tmp_path: Path,
    topic: TopicName,
    opened: list[Backend],
    secure: bool,
    kept: str,
) -> None:
    token = broker.token("anna")
    (tmp_path / "token").write_text(f"{token}\n")
    given = {kept: token if kept == "token" else str(tmp_path / "token")}
    opened.append(connected(broker, secure, **given))
    publish(opened[0], topic)


def test_certificate_of_the_settings_lets_the_router_publish(
    broker: Guarded, topic: TopicName, opened: list[Backend]
) -> None:
    pair = broker.authority.issue("device")
    opened.append(connected(broker, True, cert=str(pair.cert), key=str(pair.key)))
    publish(opened[0], topic)


def test_connection_lives_on_when_the_token_in_the_file_is_renewed(
    broker: Guarded, tmp_path: Path, topic: TopicName, opened: list[Backend]
) -> None:
    file = tmp_path / "token"
    file.write_text(broker.token("anna", "5s"))
    opened.append(connected(broker, False, token_file=str(file)))
    publish(opened[0], topic)
    log = broker.process.folder / "broker.log"
    before = log.read_text().count("client-refused")
    file.write_text(short := broker.token("anna", "8s"))
    file.write_text(broker.token("anna"))
    # By then the first token has ended, and the second would have.
    watching = connected(broker, False, token=short)
    opened.append(watching)
    publish(watching, topic)
    wait_until(lambda: log.read_text().count("client-refused") > before)
    publish(opened[0], topic)
    assert log.read_text().count("client-refused") == before + 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [({}, "a client without credentials"), ({"token": "a.b.c"}, "the token of pulsar.token:")],
)
def test_router_that_is_refused_says_at_once_that_the_backend_is_not_for_it(
    broker: Guarded, topic: TopicName, opened: list[Backend], given: dict[str, str], shown: str
) -> None:
    opened.append(connected(broker, False, **given))
    began = time.monotonic()
    # Whoever asked the router for something did nothing wrong.
    with pytest.raises(CredentialsRefusedError, match=f"refuses {shown}"):
        publish(opened[0], topic, 60.0)
    assert time.monotonic() - began < 30


def test_right_that_the_router_lacks_is_not_its_clients(
    broker: Guarded, topic: TopicName, opened: list[Backend]
) -> None:
    opened.append(connected(broker, False, token=broker.token("reader")))
    with pytest.raises(NotAllowedError):
        publish(opened[0], topic)


def test_server_that_no_authority_vouches_for_is_not_talked_to(
    broker: Guarded, tmp_path: Path, topic: TopicName, opened: list[Backend]
) -> None:
    other = type(broker.authority)(tmp_path / "other")
    opened.append(connected(broker, True, token=broker.token("anna"), ca=str(other.ca)))
    # What the last of its tries met is said: that one has half of the time.
    with pytest.raises(BackendUnavailableError, match="certificate"):
        publish(opened[0], topic, WAIT)


@pytest.mark.parametrize(
    "given",
    [
        {"token": "a", "token_file": "b"},
        {"token_file": "missing"},
        {"ca": "missing"},
        {"cert": "missing"},
        {"key": "missing"},
    ],
)
def test_credentials_that_cannot_be_used_are_refused_at_once(given: dict[str, str]) -> None:
    settings = load(None, {}, {f"pulsar.{name}": text for name, text in given.items()})
    with pytest.raises(SettingError, match=r"pulsar\."):
        open_backend("pulsar+ssl://localhost:6651", settings, None)


def test_files_for_tls_are_refused_without_it(broker: Guarded) -> None:
    settings = load(None, {}, {"pulsar.ca": str(broker.authority.ca)})
    with pytest.raises(SettingError, match=r"pulsar\+ssl"):
        open_backend("pulsar://localhost:6650", settings, None)
