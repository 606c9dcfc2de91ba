"""The router on a real Apache Pulsar, with a token and over TLS: as users start it, and killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from router.backends import Batch, Start
from router.backends import pulsar as pulsar_backend
from router.errors import BackendUnavailableError, NotAllowedError
from router.model import NOT_PARTITIONED, Grant, Message, Subscription, TopicName
from tests.contract.conftest import WAIT, Bell, Opened, open_apache, settings_for
from tests.contract.publishing import Publishers, check, received
from tests.processes import wait_until
from tests.servers.pulsar import Pulsar
from tests.system.stack import Stack
from tests.system.traffic import create, poll, post, read_all, waiting

pytestmark = [pytest.mark.system, pytest.mark.java, pytest.mark.timeout(600)]

PATIENCE = 60.0
LIVENESS_CHECK = 4.5


class Site:
    """A secure Pulsar of this module's own, the router on it, and a backend of a test's own."""

    def __init__(self, server: Pulsar, router: Stack, opened: Opened) -> None:
        self.server = server
        self.router = router
        self.opened = opened


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("apache")
    with ExitStack() as stack:
        server = Pulsar(folder / "pulsar", secure=True)
        stack.callback(server.stop)
        server.start()
        opened = open_apache(server, folder, stack)
        settings = {name.replace("__", "_"): value for name, value in server.flags.items()}
        router = Stack(
            folder, "--workers", "2", "--backend", server.backend, publish_timeout="8s", **settings
        )
        stack.callback(router.stop)
        router.start()
        yield Site(server, router, opened)


def test_what_is_posted_is_polled_by_other_groups_and_workers(site: Site) -> None:
    router = site.router
    create(router, "plain", 3)
    # Requests come to either worker; a poll waits for what is posted while it does.
    came: list[str] = []
    assert poll(router, "plain/g/a").json == []
    thread = threading.Thread(target=lambda: came.extend(poll(router, "plain/g/a", 10).json))
    thread.start()
    wait_until(lambda: waiting(router) == 1)
    for number in range(20):
        assert post(router, "plain", f"m{number}").status == 200
    thread.join(20)
    assert came

    def complete() -> bool:
        came.extend(poll(router, "plain/g/a", 0.5).json)
        return len(came) >= 20

    wait_until(complete)
    assert sorted(came) == sorted(f"m{number}" for number in range(20))
    assert sorted(read_all(router, "plain", count=20)) == sorted(came)


@pytest.mark.parametrize(
    ("flags", "failure"),
    [
        ({"pulsar__token": "none"}, BackendUnavailableError),
        ({"pulsar__ca": ""}, BackendUnavailableError),
        ({"role": "nobody"}, NotAllowedError),
    ],
    ids=["bad token", "unknown authority", "role without rights"],
)
def test_who_is_not_admitted_is_told_so(
    site: Site, flags: dict[str, str], failure: type[Exception], tmp_path: Path
) -> None:
    given = site.server.flags | flags
    if role := given.pop("role", ""):
        given["pulsar__token"] = site.server.token(role)
    backend = pulsar_backend.open_backend(
        site.server.backend, settings_for(tmp_path, **given), None
    )
    batch = Batch(TopicName.parse("refused"), NOT_PARTITIONED, [Message(b"1")])
    with pytest.raises(failure):
        backend.publish(batch, WAIT)
    backend.close()


STANDING_STILL = """
import json, sys, time
from router import settings
from router.backends import pulsar
from router.model import Grant, Subscription, TopicName

url, topic, flags = sys.argv[1:]
backend = pulsar.open_backend(url, settings.load(None, {}, json.loads(flags)), None)

class Bell:
    def wake(self):
        pass

grant = Grant(Subscription(TopicName.parse(topic), "g"), -1, 1)
consumer = backend.consume(grant, Bell(), 30)
print("open", flush=True)
time.sleep(600)
"""


def test_a_partition_of_a_node_that_stands_still_is_had_by_the_next_holder_of_its_lease_at_once(
    site: Site,
) -> None:
    opened = site.opened
    topic = opened.new_topic()
    subscription = Subscription(topic, "g")
    opened.backend.subscribe(subscription, Start.EARLIEST, WAIT)
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"1")]), WAIT)
    flags = {name.replace("__", "."): value for name, value in site.server.flags.items()}
    command = [sys.executable, "-c", STANDING_STILL, site.server.backend, str(topic)]
    with subprocess.Popen([*command, json.dumps(flags)], stdout=subprocess.PIPE) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == b"open\n"
            node.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            consumer = opened.backend.consume(Grant(subscription, NOT_PARTITIONED, 2), Bell(), 30)
            took = time.monotonic() - began
        finally:
            node.kill()
    (stored,) = consumer.receive(10, 1 << 20, WAIT)
    consumer.acknowledge(stored.position, WAIT)
    consumer.close()
    assert stored.message.value == b"1"
    # Left to itself Pulsar waits 5 s for a sign of life.
    assert took < LIVENESS_CHECK, took


def test_nothing_acknowledged_is_lost_or_doubled_when_the_broker_is_killed(site: Site) -> None:
    opened, router = site.opened, site.router
    topic = opened.new_topic()
    opened.backend.subscribe(Subscription(topic, "reader"), Start.EARLIEST, WAIT)
    publishers = Publishers(opened, topic)
    publishers.more()
    site.server.kill()
    refused = post(router, "plain", "while it is down")
    assert refused.status in {503, 504}
    assert post(router, "plain", "again").status == 503
    assert int(post(router, "plain", "and again").headers["retry-after"]) > 0
    site.server.start()
    publishers.more()
    publishers.end()
    check(publishers, received(opened, topic))

    def recovered() -> bool:
        return post(router, "plain", "after").status == 200

    wait_until(recovered, PATIENCE)
    seen: list[str] = []

    def polled() -> bool:
        answer = poll(router, "plain/later/a", 1)
        if answer.status == 200:
            seen.extend(answer.json)
        return "after" in seen

    wait_until(polled, PATIENCE)
    assert {f"m{number}" for number in range(20)} <= set(seen)
