"""Where the administration of Apache Pulsar is, if the backend's address does not say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from flask.testing import FlaskClient

from router.app import create_app
from router.backends import memory, pulsar
from router.backends.pulsar.address import ADMIN_PORTS
from tests.contract.conftest import serving_pulsar, settings_for
from tests.ports import free_port
from tests.servers.pulsar import Pulsar

pytestmark = pytest.mark.contract

Open = Callable[[str], FlaskClient]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Open]:
    """Serve HTTP over the backend at an address."""
    with ExitStack() as stack:

        def opened(url: str) -> FlaskClient:
            settings = settings_for(tmp_path)
            node, backend = memory.open_node(settings), pulsar.open_backend(url, settings, None)
            app = create_app(settings, backend, node)
            for close in (node.close, backend.close, app.extensions["router.close"]):
                stack.callback(close)
            return app.test_client()

        yield opened


def tried(client: FlaskClient, topic: str) -> tuple[int, int, list[str]]:
    """Do what `serve` prints under "Try it", and list topics; return what comes of it."""
    posted = client.post(f"/events/{topic}", data="hello", content_type="text/plain")
    listed = client.get("/topics")
    polled = client.get(f"/events/{topic}/g1/c1?from=earliest&timeout=30000")
    return posted.status_code, listed.status_code, polled.get_json()


@pytest.mark.java
@pytest.mark.timeout(300)
def test_administration_is_used_at_its_default_port(
    apache_pulsar: Pulsar, client: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(apache_pulsar.admin).port
    assert port is not None
    monkeypatch.setitem(ADMIN_PORTS, "http", port)
    served = client(apache_pulsar.url)
    assert served.get("/ready").status_code == 200
    assert tried(served, "default-port") == (200, 200, ["hello"])


@pytest.mark.java
@pytest.mark.timeout(300)
def test_router_is_not_ready_while_administration_is_neither_there_nor_declined(
    apache_pulsar: Pulsar, client: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADMIN_PORTS, "http", free_port())
    answer = client(apache_pulsar.url).get("/ready")
    assert answer.status_code == 503
    assert "?admin=http://host:port" in answer.get_json()["errorMessage"]
    declined = client(f"{apache_pulsar.url}/?admin=none")
    assert declined.get("/ready").status_code == 200
    apache_pulsar.ask("PUT", "persistent/public/default/without-administration", body={})
    posted = declined.post("/events/without-administration", data="x", content_type="text/plain")
    assert posted.status_code == 200
    assert declined.get("/topics").status_code == 403


def test_a_broker_of_the_router_needs_no_administration(
    client: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADMIN_PORTS, "http", free_port())
    with serving_pulsar(tmp_path / "broker") as url:
        served = client(url)
        assert served.get("/ready").status_code == 200
        assert tried(served, "own") == (200, 200, ["hello"])
