"""What `serve` says of a store that takes no connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from router.cli.serve import REPORT_SECONDS, Announcer, StoreReport, unreachable
from router.settings import Settings, load
from tests.processes import ManualClock


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> Iterator[str]:
    """An address that is taken and refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def on(url: str) -> Settings:
    return load(None, {}, {"backend.url": url})


@pytest.mark.parametrize(("scheme", "name"), [("kafka", "Kafka"), ("pulsar", "Pulsar")])
def test_a_store_that_refuses_is_named_with_its_address_and_the_error(
    closed: str, scheme: str, name: str
) -> None:
    sentence = unreachable(on(f"{scheme}://{closed}/?option=1"))
    assert sentence is not None
    assert sentence.startswith(f"{name} cannot be reached ({closed}: Connection refused)")


def test_one_address_that_takes_connections_is_enough(closed: str, listening: str) -> None:
    assert unreachable(on(f"kafka://{closed},{listening}")) is None


@pytest.mark.parametrize("url", ["embedded", "memory"])
def test_a_store_of_this_node_is_not_looked_for(url: str) -> None:
    assert unreachable(on(url)) is None


def test_every_address_is_named(closed: str) -> None:
    sentence = unreachable(on(f"kafka://{closed},{closed}"))
    assert sentence is not None
    assert sentence.count(f"{closed}: Connection refused") == 2


def test_it_is_reported_at_once_and_again_and_again_until_it_is_there(
    closed: str, clock: ManualClock
) -> None:
    said: list[str] = []
    report = StoreReport(on(f"kafka://{closed}"), said.append, clock)
    assert report.check()
    assert not report.check()
    clock.advance(REPORT_SECONDS - 0.1)
    assert not report.check()
    clock.advance(0.1)
    assert report.check()
    assert len(said) == 2


def test_nothing_is_reported_of_a_store_that_is_there(listening: str, clock: ManualClock) -> None:
    said: list[str] = []
    assert not StoreReport(on(f"kafka://{listening}"), said.append, clock).check()
    assert said == []


def test_serve_says_at_its_first_look_that_the_store_is_away(
    closed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    announcer = Announcer(on(f"kafka://{closed}"), lambda: False)
    announcer.watch()
    announcer.watch()
    assert capsys.readouterr().err.count(f"Kafka cannot be reached ({closed}:") == 1
