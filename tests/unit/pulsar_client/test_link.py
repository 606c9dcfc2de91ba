from __future__ import annotations

import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from router.errors import BackendUnavailableError, NotServedError, RouterError
from router.pulsar_client import link as module
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.pulsar_client.link import PulsarLink
from router.wire.pulsar import pulsar_pb2 as pb
from tests.processes import ManualClock, wait_until
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T


class Queue(threading.Condition):
    """A condition that counts who waits for it."""

    waiting = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait, and be counted meanwhile."""
        self.waiting += 1
        try:
            return super().wait(timeout)
        finally:
            self.waiting -= 1


def soon() -> float:
    return time.monotonic() + WAIT


def lookup(request_id: int) -> pb.BaseCommand:
    asked = pb.CommandLookupTopic(topic="t", request_id=request_id)
    return pb.BaseCommand(type=T.LOOKUP, lookupTopic=asked)


def test_callers_at_once_share_one_connection() -> None:
    broker = FakeBroker()
    link = broker.link()
    found: list[PulsarConnection] = []
    threads = [
        threading.Thread(target=lambda: found.append(link.connection(soon()))) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    link.close()
    assert len(found) == 10
    assert len(broker.sides) == 1


def test_a_lost_connection_is_opened_again() -> None:
    broker = FakeBroker()
    link = broker.link()
    first = link.connection(soon())
    broker.side.cut()
    deadline = soon()
    while first.error is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert link.connection(soon()) is not first
    link.close()


def test_a_call_is_repeated_on_the_next_connection() -> None:
    broker = FakeBroker()

    def cut_the_first(side: Side, command: pb.BaseCommand, _payload: bytes) -> None:
        if len(broker.sides) == 1:
            side.cut()
            return
        found = pb.CommandLookupTopicResponse(request_id=command.lookupTopic.request_id)
        side.send(T.LOOKUP_RESPONSE, lookupTopicResponse=found)

    broker.on[T.LOOKUP] = cut_the_first
    link = broker.link()
    link.call(lookup, soon())
    link.close()
    assert len(broker.of(T.LOOKUP)) == 2


def test_a_call_that_must_not_be_repeated_is_not() -> None:
    broker = FakeBroker()
    broker.on[T.LOOKUP] = lambda side, _command, _payload: side.cut()
    link = broker.link()
    with pytest.raises(PulsarConnectionLostError):
        link.call(lookup, soon(), again=False)
    link.close()
    assert len(broker.of(T.LOOKUP)) == 1


class Passing(threading.Condition):
    """A condition that nothing changes: the time of a clock passes at once."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass."""
        assert timeout is not None
        self._clock.advance(timeout)
        return False


def test_failed_dials_pause_ever_longer_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    dialled: list[float] = []

    def dial(_deadline: float) -> PulsarConnection:
        dialled.append(clock())
        raise ConnectionRefusedError("nobody")

    link = PulsarLink(dial)
    link._changed = Passing(clock)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    with pytest.raises(BackendUnavailableError, match="nobody") as caught:
        link.connection(clock() + 0.5)
    assert caught.value.retry_after == pytest.approx(0.2)
    pauses = [later - earlier for earlier, later in pairwise(dialled)]
    assert pauses == pytest.approx([0.1, 0.2])


def test_what_nobody_will_serve_is_said_at_once() -> None:
    def dial(_deadline: float) -> PulsarConnection:
        raise NotServedError("read-only")

    began = time.monotonic()
    with pytest.raises(NotServedError, match="read-only"):
        PulsarLink(dial).connection(soon())
    assert time.monotonic() - began < 5


def test_a_closed_link_opens_nothing() -> None:
    broker = FakeBroker()
    link = broker.link()
    link.connection(soon())
    link.close()
    with pytest.raises(BackendUnavailableError):
        link.connection(soon())
    assert len(broker.sides) == 1


def test_closing_ends_the_calls_under_way() -> None:
    broker = FakeBroker()
    link = broker.link()
    failures: list[BackendUnavailableError] = []

    def work() -> None:
        try:
            link.call(lookup, soon())
        except BackendUnavailableError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    broker.wait_for(T.LOOKUP)
    link.close()
    thread.join(WAIT)
    assert len(failures) == 1


def test_a_peer_that_lets_connections_go_at_once_is_not_dialled_all_the_time() -> None:
    broker = FakeBroker()
    broker.on[T.LOOKUP] = lambda side, _command, _payload: side.cut()
    link = broker.link()
    with pytest.raises(RouterError):
        link.call(lookup, time.monotonic() + 0.5)
    link.close()
    assert 2 <= len(broker.sides) <= 6


def test_callers_who_wait_for_a_dial_give_up_with_it_where_they_may() -> None:
    dialled: list[float] = []
    all_wait = threading.Event()

    def dial(_deadline: float) -> PulsarConnection:
        dialled.append(time.monotonic())
        all_wait.wait(WAIT)
        raise ConnectionRefusedError("nobody")

    link, queue = PulsarLink(dial), Queue()
    link._changed = queue
    failures: list[str] = []

    def work() -> None:
        try:
            link.connection(soon(), again=False)
        except BackendUnavailableError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(dialled) == 1 and queue.waiting == len(threads) - 1)
    all_wait.set()
    for thread in threads:
        thread.join(WAIT)
    assert len(failures) == 10
    assert all("nobody" in failure for failure in failures)
    assert len(dialled) <= 3
