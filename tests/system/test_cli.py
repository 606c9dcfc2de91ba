"""The commands on a real broker: one that runs, and one that they start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from router.broker.folder import LOCK
from router.cli import status
from tests.processes import BrokerProcess, wait_until

pytestmark = pytest.mark.system

ROUTER = [sys.executable, "-m", "router"]


def router(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*ROUTER, *arguments, "--data", str(folder)],
        input=given,
        env=os.environ | {"ROUTER_BROKER_LINGER": "200ms", "ROUTER_SERVER_PORT": "0"},
        capture_output=True,
        timeout=30,
        check=False,
    )


def lines(result: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


def test_commands_talk_to_the_running_broker(broker: BrokerProcess) -> None:
    assert lines(router(broker.folder, "topics", "create", "orders", "--partitions", "2"))
    assert lines(router(broker.folder, "topics", "list")) == ["orders  2"]
    result = router(broker.folder, "pub", "orders", "--key", "k", given=b"one\ntwo\n")
    assert b"Published 2 messages" in result.stderr
    read = ["sub", "orders", "--from", "earliest", "--count", "2", "--group", "g"]
    assert lines(router(broker.folder, *read)) == ["one", "two"]
    described = lines(router(broker.folder, "topics", "describe", "orders"))
    assert "partitions: 2" in described
    assert sum("group g" in line and " 0 messages wait" in line for line in described) == 2
    assert lines(router(broker.folder, "topics", "delete", "orders"))
    assert lines(router(broker.folder, "topics", "list")) == []
    assert (broker.folder / LOCK).read_text().strip() == str(broker.pid)


def test_newest_values_of_a_compacted_topic_are_printed(broker: BrokerProcess) -> None:
    topic = "prices"
    assert lines(router(broker.folder, "topics", "create", topic, "--cleanup-policy", "compact"))
    for key, value in (("tea", b"1"), ("milk", b'{"eur": 2}'), ("tea", b"3")):
        router(broker.folder, "pub", topic, "--key", key, "--format", "raw", given=value)
    latest = "topics", "latest", topic
    assert lines(router(broker.folder, *latest, "tea")) == ["3"]
    assert lines(router(broker.folder, *latest, "bWlsaw==", "--base64")) == ['{"eur": 2}']
    assert lines(router(broker.folder, *latest)) == ['milk  {"eur": 2}', "tea   3"]
    page = router(broker.folder, *latest, "--limit", "1")
    assert lines(page) == ['milk  {"eur": 2}']
    after = page.stderr.decode().rpartition(" ")[2].strip()
    (found,) = lines(router(broker.folder, *latest, "--after", after, "--json"))
    found = json.loads(found)
    assert [(one["key"], one["value"]) for one in found["values"]] == [("tea", "3")]
    assert found["next"] is None
    absent = router(broker.folder, *latest, "absent")
    assert (absent.returncode, absent.stdout) == (status.NOT_FOUND, b"")
    assert router(broker.folder, *latest, "!", "--base64").returncode == status.USAGE


def test_commands_start_a_broker_that_leaves_after_them(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    published = router(folder, "pub", "greetings", given=b"hello\n")
    assert published.returncode == 0
    assert b"holds no data: a broker is started there" in published.stderr
    holder = Path(f"/proc/{(folder / LOCK).read_text().strip()}")
    wait_until(lambda: not holder.exists())
    assert lines(router(folder, "sub", "greetings", "--from", "earliest", "--count", "1")) == [
        "hello"
    ]


def test_sub_prints_what_comes_and_ends_cleanly_when_interrupted(broker: BrokerProcess) -> None:
    assert lines(router(broker.folder, "topics", "create", "news"))
    command = [*ROUTER, "sub", "news", "--group", "g", "--data", str(broker.folder)]
    tail = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tail.stdout is not None
    wait_until(
        lambda: "group g" in "".join(lines(router(broker.folder, "topics", "describe", "news")))
    )
    assert router(broker.folder, "pub", "news", given=b"flash\n").returncode == 0
    assert tail.stdout.readline() == b"flash\n"
    tail.send_signal(signal.SIGINT)
    _, errors = tail.communicate(timeout=20)
    assert (tail.returncode, errors) == (0, b"")
    assert any(
        "group g" in line and " 0 messages wait" in line
        for line in lines(router(broker.folder, "topics", "describe", "news"))
    )


def test_check_reads_what_a_stopped_broker_left(broker: BrokerProcess) -> None:
    assert router(broker.folder, "pub", "greetings", given=b"hello\n").returncode == 0
    assert b"a broker serves it" in router(broker.folder, "check").stdout
    assert broker.stop() == 0
    assert lines(router(broker.folder, "check"))[-1] == f"{broker.folder}: in order"
    broker.start()


def test_broker_refuses_a_folder_that_is_served(broker: BrokerProcess) -> None:
    result = router(broker.folder, "broker")
    assert result.returncode == os.EX_TEMPFAIL
    assert b"another router" in result.stderr
