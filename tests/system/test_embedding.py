"""What other projects may import: `Router`, the fixture of pytest, and a backend of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from router import Router

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

SECONDS = 120.0
# A project outside the tree: a backend with its entry point, and tests that name the fixture.
PROJECT = {
    "acme-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
    "acme-1.0.dist-info/entry_points.txt": "[router.backends]\nacme = acme:open_backend\n",
    "acme.py": """\
from router.backends import Backend
from router.backends.memory import open_backend as open_memory


def open_backend(url, settings, node) -> Backend:
    assert url == "acme:orders"
    return open_memory(url, settings, node)
""",
    "pytest.ini": "[pytest]\n",
    "test_orders.py": """\
import json
import urllib.request

from router import Router


def publish_and_poll(router, topic):
    url = f"{router.url}/events/{topic}"
    text = {"Content-Type": "text/plain"}
    request = urllib.request.Request(url, data=b"hello", headers=text)
    assert urllib.request.urlopen(request, timeout=30).status == 200
    poll = f"{url}/billing/1?from=earliest&limit=1&timeout=20000"
    return json.load(urllib.request.urlopen(poll, timeout=30))


def test_fixture(dragoman):
    assert publish_and_poll(dragoman, "orders") == ["hello"]


def test_fixture_is_shared(dragoman):
    assert publish_and_poll(dragoman, "more-orders") == ["hello"]


def test_backend(tmp_path):
    with Router(tmp_path, settings={"backend.url": "acme:orders"}) as router:
        assert publish_and_poll(router, "orders") == ["hello"]
        assert router.kafka == ""
""",
}


def test_project_outside_the_tree_uses_fixture_and_backend(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environ | {"PYTHONPATH": str(tmp_path), "ROUTER_SERVER_PORT": "nonsense"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_router_listens_for_each_protocol_and_its_temporary_folder_goes() -> None:
    with Router() as router:
        folder = router.folder
        assert (folder / "data").is_dir()
        scheme, _, where = router.nats.partition("://")
        assert scheme == "nats"
        pulsar = router.pulsar.removeprefix("pulsar://")
        for address in (where, router.kafka, pulsar):
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), 30).close()
    assert not folder.exists()
    router.stop()


def test_start_that_fails_says_the_end_of_the_log(tmp_path: Path) -> None:
    router = Router(tmp_path, settings={"server.wrokers": "2"})
    with pytest.raises(RuntimeError, match=r"(?s)did not start.*SERVER_WROKERS"):
        router.start()


def test_start_has_a_deadline(tmp_path: Path) -> None:
    router = Router(tmp_path, settings={"backend.url": "memory"}, timeout=0.0)
    with pytest.raises(RuntimeError, match="not ready after 0 s"):
        router.start()


def test_addresses_are_no_settings() -> None:
    with pytest.raises(ValueError, match=r"broker.kafka, server.port"):
        Router(settings={"server.port": "1", "broker.kafka": "127.0.0.1:2"})


def test_importing_the_package_and_its_plugin_loads_neither_settings_nor_web() -> None:
    code = (
        "import sys, router, router.pytest_plugin;"
        "print([m for m in sys.modules if m.startswith(('router.', 'flask', 'gevent'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "['router.pytest_plugin']\n"
