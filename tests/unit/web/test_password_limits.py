"""Password checks of HTTP requests: their threads, their queue, and what is dropped from it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from router.access import passwords
from router.access.passwords import Users
from router.backends.memory import MemoryNode
from router.errors import TooManyRequestsError, UnauthenticatedError
from router.metrics import Metrics
from router.settings import load
from router.web import offload
from router.web.access import WorkerPasswords, authentication
from tests.processes import ManualClock, wait_until
from tests.unit.web.applications import CHEAP, HASHES

WAIT = 20.0


class Checks:
    """Checks of passwords that are held up until a test lets them go on."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **settings: str) -> None:
        self.users = folder / "users"
        self.users.write_text("".join(f"{name}:{h}\n" for name, h in HASHES.items()))
        given = {"auth.users": str(self.users), "auth.failures_per_minute": "0"}
        given |= {f"auth.{name}": text for name, text in settings.items()}
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.node = MemoryNode(clock=self.clock)
        self.passwords = WorkerPasswords(load(None, {}, given), self.node, self.metrics, self.clock)
        self.entered: list[str] = []
        self.threads: set[str] = set()
        self.free = threading.Event()
        self.free.set()
        self.pool = ThreadPoolExecutor(64)
        verify = Users.verify

        def slow(users: Users, name: str, password: str) -> bool:
            self.entered.append(name)
            self.threads.add(threading.current_thread().name)
            assert self.free.wait(WAIT)
            return verify(users, name, password)

        patch.setattr(Users, "verify", slow)

    def check(
        self, name: str, password: str = "secret", client: socket.socket | None = None
    ) -> str:
        return self.passwords.principal(f"{name}:{password}".encode(), "10.0.0.1", client).name

    def begin(self, name: str, client: socket.socket | None = None) -> Future[str]:
        """Begin a check in another thread."""
        return self.pool.submit(self.check, name, "secret", client)

    def queued(self) -> int:
        return self.passwords._checks._queued


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Checks]]:
    made: list[Checks] = []

    def make(**settings: str) -> Checks:
        made.append(Checks(tmp_path, monkeypatch, **settings))
        return made[-1]

    yield make
    for each in made:
        each.free.set()
        each.pool.shutdown()


def test_checks_of_strangers_have_a_thread_of_their_own(checks: Callable[..., Checks]) -> None:
    held = checks()
    held.free.clear()
    waiting = [held.begin(name) for name in ("a", "b", "c")]
    wait_until(lambda: held.queued() == 3 and len(held.entered) > 0, WAIT)
    assert offload.run(lambda: "served") == "served"
    assert len(held.entered) == 1
    held.free.set()
    assert all(isinstance(task.exception(WAIT), UnauthenticatedError) for task in waiting)
    assert {name.rpartition("_")[0] for name in held.threads} == {"passwords"}


def test_checks_that_wait_are_bounded(
    checks: Callable[..., Checks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "MAX_QUEUED_CHECKS", 3)
    held = checks()
    held.free.clear()
    waiting = [held.begin(name) for name in ("a", "b", "c")]
    wait_until(lambda: held.queued() == 3, WAIT)
    with pytest.raises(TooManyRequestsError) as refusal:
        held.check("d")
    assert refusal.value.retry_after == 1
    held.free.set()
    assert all(task.exception(WAIT) for task in waiting)
    assert held.check("argon2") == "argon2"


def test_known_credentials_bypass_queue_and_limits(
    checks: Callable[..., Checks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "MAX_QUEUED_CHECKS", 1)
    held = checks(attempts_per_minute="1", cache="1s")
    assert held.check("argon2") == "argon2"
    held.free.clear()
    stranger = held.begin("b")
    wait_until(lambda: held.entered[-1] == "b", WAIT)
    with pytest.raises(TooManyRequestsError):
        held.check("bcrypt")
    held.clock.advance(1)  # what was verified is over now
    known = held.begin("argon2")
    wait_until(lambda: held.entered[-1] == "argon2", WAIT)
    held.free.set()
    assert known.result(WAIT) == "argon2"
    assert isinstance(stranger.exception(WAIT), UnauthenticatedError)


def test_known_credentials_bypass_the_limit_of_their_address(
    checks: Callable[..., Checks],
) -> None:
    held = checks(failures_per_minute="1", cache="1s")
    assert held.check("argon2") == "argon2"
    with pytest.raises(UnauthenticatedError):
        held.check("nobody")
    held.clock.advance(1)
    with pytest.raises(TooManyRequestsError):
        held.check("bcrypt")
    assert held.check("argon2") == "argon2"


def test_known_credentials_that_are_wrong_now_are_strangers_again(
    checks: Callable[..., Checks],
) -> None:
    held = checks(failures_per_minute="1")
    assert held.check("argon2") == "argon2"
    held.users.write_text(f"bcrypt:{HASHES['bcrypt']}")
    held.clock.advance(60)
    with pytest.raises(UnauthenticatedError):
        held.check("argon2")
    with pytest.raises(TooManyRequestsError, match="from this address"):
        held.check("argon2")


def test_checks_whose_clients_have_left_are_dropped(checks: Callable[..., Checks]) -> None:
    held = checks()
    held.free.clear()
    first = held.begin("argon2")
    wait_until(lambda: held.entered == ["argon2"], WAIT)
    ours, theirs = socket.socketpair()
    stays, _other = socket.socketpair()
    with ours, stays, _other:
        left = held.begin("b", ours)
        stayed = held.begin("c", stays)
        wait_until(lambda: held.queued() == 3, WAIT)
        theirs.close()
        held.free.set()
        assert isinstance(left.exception(WAIT), TooManyRequestsError)
        assert isinstance(stayed.exception(WAIT), UnauthenticatedError)
    assert first.result(WAIT) == "argon2"
    assert held.entered == ["argon2", "c"]


def test_check_is_done_while_one_of_its_clients_stays(checks: Callable[..., Checks]) -> None:
    held = checks()
    held.free.clear()
    first = held.begin("argon2")
    wait_until(lambda: held.entered == ["argon2"], WAIT)
    ours, theirs = socket.socketpair()
    with ours:
        left = held.begin("bcrypt", ours)
        wait_until(lambda: held.queued() == 2, WAIT)
        stayed = held.begin("bcrypt")
        wait_until(lambda: _waiting_for(held) == [1, 2], WAIT)
        theirs.close()
        held.free.set()
        assert [task.result(WAIT) for task in (first, left, stayed)] == [
            "argon2",
            "bcrypt",
            "bcrypt",
        ]


def test_requests_with_the_same_credentials_share_a_check_that_is_not_remembered(
    checks: Callable[..., Checks],
) -> None:
    held = checks(cache="0s")
    held.free.clear()
    first, second = held.begin("argon2"), held.begin("argon2")
    wait_until(lambda: _waiting_for(held) == [2], WAIT)
    held.free.set()
    assert [first.result(WAIT), second.result(WAIT)] == ["argon2", "argon2"]
    assert held.entered == ["argon2"]


def _waiting_for(held: Checks) -> list[int]:
    return sorted(len(check.departures) for check in held.passwords._checks._checks.values())


def test_check_that_is_not_done_in_time_is_refused_and_not_made_up_for(
    checks: Callable[..., Checks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "MAX_CHECK_SECONDS", 0.05)
    held = checks()
    held.free.clear()
    for name in ("a", "b"):
        with pytest.raises(TooManyRequestsError):
            held.check(name)
    held.free.set()
    monkeypatch.setattr(authentication, "MAX_CHECK_SECONDS", WAIT)
    assert held.check("argon2") == "argon2"
    assert held.entered == ["a", "argon2"]


def test_refusals_wait_where_that_costs_no_thread(
    checks: Callable[..., Checks], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(offload, "pause", paused.append)
    held = checks(attempts_per_minute="1")
    with pytest.raises(UnauthenticatedError):
        held.check("a", "wrong")
    assert paused == []
    with pytest.raises(TooManyRequestsError):
        held.check("a", "wrong")
    assert len(paused) == 1
    assert (
        authentication.MIN_REFUSAL_DELAY_SECONDS
        <= paused[0]
        <= authentication.MAX_REFUSAL_DELAY_SECONDS
    )
    monkeypatch.setattr(authentication, "MAX_DELAYED_REFUSALS", 0)
    with pytest.raises(TooManyRequestsError):
        held.check("a", "wrong")
    assert len(paused) == 1


def test_check_of_an_old_password_is_not_shared_once_the_file_changed(
    checks: Callable[..., Checks],
) -> None:
    """Who joined it would be given the new record's session for the old password."""
    held = checks(cache="0s", attempts_per_minute="0")
    held.free.clear()
    first = held.begin("argon2")
    wait_until(lambda: held.entered == ["argon2"], WAIT)
    held.users.write_text(f"argon2:{CHEAP.hash('another')}\n")
    held.clock.advance(1)
    second = held.pool.submit(held.passwords.sign_in, "argon2", "secret", "10.0.0.1", None)
    wait_until(lambda: len(held.passwords._checks._checks) == 2, WAIT)
    held.free.set()
    for check in (first, second):
        with pytest.raises(UnauthenticatedError):
            check.result(WAIT)
