"""A topic that is deleted while it is published to and polled: nobody else may notice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.system.stack import Stack
from tests.system.traffic import PATIENCE, ask, poll, post, started

pytestmark = pytest.mark.system
SECONDS = 3.0
SLOWEST_SECONDS = 10.0


class Publishing(threading.Thread):
    """Publishes to one topic until told to stop and counts the answers by their status."""

    def __init__(self, stack: Stack, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.stack, self.stopping = stack, stopping
        self.statuses: Counter[int] = Counter()
        self.slowest = 0.0

    def run(self) -> None:
        while not self.stopping.is_set():
            began = time.monotonic()
            self.statuses[post(self.stack, "fleeting", "m").status] += 1
            self.slowest = max(self.slowest, time.monotonic() - began)


class Waiting(threading.Thread):
    """Polls another topic for longer than all this takes."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self.stack = stack
        self.found: object = None

    def run(self) -> None:
        self.found = poll(self.stack, "lasting/g/c", PATIENCE).json


def test_publishing_goes_on_while_its_topic_is_deleted_again_and_again(tmp_path: Path) -> None:
    with started(tmp_path, "--workers", "1") as stack:
        assert post(stack, "lasting", "before").status == 200
        assert poll(stack, "lasting/g/c").json == ["before"]
        waiting = Waiting(stack)
        waiting.start()
        stopping, until = threading.Event(), time.monotonic() + SECONDS
        publishing = [Publishing(stack, stopping) for _ in range(4)]
        for thread in publishing:
            thread.start()
        deleted: Counter[int] = Counter()
        while time.monotonic() < until or deleted[200] <= 10:
            assert time.monotonic() < until + PATIENCE, deleted
            deleted[ask(stack, "DELETE", "/topics/fleeting").status] += 1
            time.sleep(0.005)
        stopping.set()
        for thread in publishing:
            thread.join(PATIENCE)
        assert post(stack, "lasting", "after").status == 200
        waiting.join(PATIENCE)
        log = (tmp_path / "data" / "broker.log").read_text()
    answered = sum((thread.statuses for thread in publishing), Counter())
    # 404: deleted again each time that the request made it anew.
    assert set(answered) <= {200, 404}, answered
    assert answered[200] > answered[404]
    assert set(deleted) <= {200, 404}, deleted
    assert max(thread.slowest for thread in publishing) < SLOWEST_SECONDS
    assert waiting.found == ["after"]
    assert "client-broke-protocol" not in log
    assert "failed" not in log
