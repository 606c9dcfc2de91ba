"""What administrators see with Apache Pulsar's own Java client is the same on both brokers.

Ours is `router broker --http`, without the front.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from tests.interop.programs import compiled
from tests.interop.world import official_client
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.servers.pulsar import Pulsar

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SECONDS = 150.0
SOURCE = Path(__file__).with_name("java") / "AdminScenarios.java"
CALLS = SOURCE.with_name("AdminCalls.java")
SERVED = 100
"""Of the calls that a user of pulsar-admin makes; Apache Pulsar refuses five of them."""
NAMES = [
    line.split('"')[1]
    for line in SOURCE.read_text("utf-8").splitlines()
    if line.startswith('        all.put("')
]


class Administered(BrokerProcess):
    """`router broker --http`; `admin` is where it serves HTTP."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        super().__init__(folder, free_port(), broker_http=f"127.0.0.1:{port}")
        self.admin = f"http://127.0.0.1:{port}"

    def health(self) -> bytes:
        """Return what is answered to the question whether it serves, empty: nothing is."""
        try:
            with urllib.request.urlopen(f"{self.admin}/admin/v2/brokers/health", timeout=5) as seen:
                found: bytes = seen.read()
        except OSError:
            return b""
        return found


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    process = Administered(tmp_path_factory.mktemp("administered") / "data")
    process.start()
    until = time.monotonic() + 60
    while process.health() != b"ok":
        assert time.monotonic() < until, "no HTTP"
        time.sleep(0.1)
    yield process
    assert process.stop() == 0
    assert process.health() == b"", "the HTTP server stays when the broker is gone"


def seen(command: list[str], url: str, tenant: str) -> dict[str, Any]:
    """Run the program against a server and return what it saw, by scenario."""
    done = subprocess.run(
        [*command, url, tenant], capture_output=True, timeout=SECONDS, check=False, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.fixture(scope="module")
def both(
    administered: Administered, apache_pulsar: Pulsar, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the program saw on our broker and on Apache Pulsar, by scenario."""
    command, tenant = compiled(SOURCE, tmp_path_factory.mktemp("classes")), uuid4().hex
    urls = (administered.admin, apache_pulsar.admin)
    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(lambda url: seen(command, url, tenant), urls)
    return here, there


@pytest.mark.parametrize("name", NAMES)
def test_administrators_see_the_same_on_both_brokers(
    name: str, both: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    here, there = both
    assert not str(there[name]).startswith("ended by"), there[name]
    assert here[name] == there[name], f"on Apache Pulsar {there[name]}"


@pytest.fixture(scope="module")
def calls(
    administered: Administered, apache_pulsar: Pulsar, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each call of a user of pulsar-admin returns on our broker and on Apache Pulsar."""
    command, tenant = compiled(CALLS, tmp_path_factory.mktemp("calls")), uuid4().hex
    urls = (administered.admin, apache_pulsar.admin)
    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(lambda url: seen(command, url, tenant), urls)
    return here, there


def is_refused(result: Any) -> bool:
    return isinstance(result, dict) and "refused" in result


def test_calls_of_pulsar_admin_are_served_or_refused_by_name(
    calls: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    here, there = calls
    assert here.keys() == there.keys()
    refused = {name: result for name, result in here.items() if is_refused(result)}
    differing = {
        name: (result, there[name])
        for name, result in here.items()
        if name not in refused and result != there[name]
    }
    assert differing == {}
    for name, result in refused.items():
        assert result["refused"] == 405, name
        assert re.search(r"is not served: (?!this call)\w", result["reason"]), (name, result)
    assert len(here) - len(refused) >= SERVED, sorted(refused)


def test_official_client_finds_the_broker_by_http(administered: Administered) -> None:
    client = official_client(administered.admin)
    topic = f"persistent://public/default/{uuid4().hex}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"by http")
    assert consumer.receive(10_000).data() == b"by http"
    # What the C++ client makes of a 404, whoever answers it.
    with pytest.raises(pulsar.ConnectError):
        client.create_producer("persistent://public/no-such-namespace/t")
    client.close()


def test_official_client_finds_topics_by_http(administered: Administered) -> None:
    client = official_client(administered.admin)
    tag = uuid4().hex
    for number in range(2):
        client.create_producer(f"persistent://public/default/{tag}-{number}").send(b"%d" % number)
    pattern = client.subscribe(
        re.compile(f"persistent://public/default/{tag}-.*"),
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    values = {pattern.receive(10_000).data() for _ in range(2)}
    client.close()
    assert values == {b"0", b"1"}
