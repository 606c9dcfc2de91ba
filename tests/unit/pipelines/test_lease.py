"""One run at a time: the lock of a folder, and the lease of the node."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.backends import NullMailbox
from router.errors import BackendUnavailableError
from router.model import NOT_PARTITIONED, ConsumerId, PollOutcome, Subscription
from router.node.memory import MemoryClaim, MemoryNode
from router.pipelines import lease
from router.pipelines.lease import CONSUMER, REGAIN_SECONDS, Lock, PipelineLease, RunningError
from router.services.pipelines import LEASES, LOCK, holder
from tests.processes import ManualClock


@pytest.fixture
def node() -> Iterator[MemoryNode]:
    made = MemoryNode()
    yield made
    made.close()


def test_second_lock_is_refused_and_says_who_holds_it(tmp_path: Path) -> None:
    first, second = Lock(tmp_path, "large"), Lock(tmp_path, "large")
    first.acquire()
    with pytest.raises(RunningError, match=f"large is running already: process {os.getpid()} on"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    assert holder(tmp_path) is None


def test_lock_is_had_when_somebody_only_asks_who_has_it(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        ending = threading.Timer(0.1, fcntl.flock, (asking, fcntl.LOCK_UN))
        ending.start()
        lock = Lock(tmp_path, "large")
        lock.acquire()
        ending.join()
        lock.release()


def test_lock_of_a_process_that_is_gone_is_free(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        Lock(tmp_path, "large").acquire()
        os._exit(0)
    os.waitpid(pid, 0)
    free = Lock(tmp_path, "large")
    free.acquire()
    free.release()


def test_second_lease_is_refused_and_says_who_holds_it(
    node: MemoryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "HANDOVER_SECONDS", 0.05)
    first, second = PipelineLease(node, "large", 5.0), PipelineLease(node, "large", 5.0)
    other = PipelineLease(node, "other", 5.0)
    first.acquire()
    other.acquire()
    with pytest.raises(RunningError, match="large is running already: "):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.check()
    second.release()
    other.release()


def test_lease_waits_for_a_run_that_is_just_ending(node: MemoryNode) -> None:
    first, second = PipelineLease(node, "large", 5.0), PipelineLease(node, "large", 5.0)
    first.acquire()
    ending = threading.Timer(0.2, first.release)
    ending.start()
    second.acquire()
    ending.join()
    second.release()


class BrokenNode(MemoryNode):
    """A node whose broker can go away, and its claims with it."""

    gone = False

    def claim(self, *given: Any, **named: Any) -> MemoryClaim:
        if self.gone:
            raise BackendUnavailableError("the broker is away")
        return super().claim(*given, **named)


def test_lost_lease_is_claimed_again_and_given_up_in_the_end(clock: ManualClock) -> None:
    node = BrokenNode()
    held = PipelineLease(node, "large", 5.0, clock)
    held.acquire()
    claim = held._claim
    assert claim is not None
    claim.give_up([NOT_PARTITIONED])
    claim.release(PollOutcome.REFUSED)
    held._claim = None
    node.gone = True
    held.check()
    clock.now += REGAIN_SECONDS - 1
    held.check()
    node.gone = False
    held.check()
    assert held._held()
    held._claim, node.gone = None, True
    held.check()
    clock.now += REGAIN_SECONDS + 1
    with pytest.raises(RunningError, match="lost its lease: the broker is away"):
        held.check()
    node.close()


def test_lease_is_a_claim_of_one_partition(node: MemoryNode) -> None:
    held = PipelineLease(node, "large", 5.0)
    held.acquire()
    claim = node.claim(ConsumerId(Subscription(LEASES, "large"), CONSUMER), 0, NullMailbox(), 5.0)
    assert claim.granted() == {}
    claim.release(PollOutcome.REFUSED)
    held.release()
