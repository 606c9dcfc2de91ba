"""Which password checks are done, shared and refused; without threads, and whatever waits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.access import passwords
from router.access.passwords import PasswordCheck, PasswordChecks
from router.backends.memory import MemoryNode
from router.errors import RouterError, TooManyRequestsError, UnauthenticatedError
from router.model import Principal
from router.settings import load
from tests.processes import ManualClock
from tests.unit.web.applications import HASHES

ADDRESS = "10.0.0.1"
RIGHT = b"argon2:secret"


class Checks:
    """Password checks of one process, which a test conducts step by step."""

    def __init__(self, folder: Path, **settings: str) -> None:
        (folder / "users").write_text(f"argon2:{HASHES['argon2']}\n")
        given = {"auth.users": str(folder / "users"), "auth.failures_per_minute": "0"}
        given |= {f"auth.{name}": text for name, text in settings.items()}
        self.clock = ManualClock()
        self.node = MemoryNode(clock=self.clock)
        self.ends: list[str] = []
        take = partial(self.node.take_token, timeout=1)
        self.core = PasswordChecks(load(None, {}, given), take, self.ends.append, self.clock)

    def begin(self, credentials: bytes = RIGHT) -> PasswordCheck:
        """Begin a check that is not under way yet."""
        check, begun = self.core.begin(credentials, ADDRESS, lambda: False)
        assert begun
        return check

    def conduct(self, check: PasswordCheck) -> None:
        """Do all of a check."""
        with self.core.conducted(check):
            self.core.admit(check)
            check.right = self.core.verify(check)


def fail(checks: Checks, check: PasswordCheck, failure: Exception) -> None:
    """Conduct a check that raises this."""
    with checks.core.conducted(check):
        checks.core.admit(check)
        raise failure


def test_clients_with_the_same_credentials_share_a_check_and_its_result(tmp_path: Path) -> None:
    checks = Checks(tmp_path)
    check = checks.begin()
    assert checks.core.begin(RIGHT, "10.0.0.2", lambda: True) == (check, False)
    assert checks.core.remembered(RIGHT) is None
    checks.conduct(check)
    assert check.result(0) == checks.core.remembered(RIGHT) == Principal("argon2")
    assert checks.ends == ["verified"]


def test_wrong_password_fails_the_check_and_the_next_one_begins_again(tmp_path: Path) -> None:
    checks = Checks(tmp_path)
    checks.conduct(check := checks.begin(b"argon2:wrong"))
    assert isinstance(check.exception(0), UnauthenticatedError)
    assert checks.begin(b"argon2:wrong") is not check
    assert checks.ends == ["refused"]


def test_check_that_breaks_off_fails_for_all_its_clients(tmp_path: Path) -> None:
    checks = Checks(tmp_path)
    check = checks.begin()
    with pytest.raises(KeyError):
        fail(checks, check, KeyError())
    assert isinstance(check.exception(0), TooManyRequestsError)
    checks.conduct(again := checks.begin())
    assert again.result(0) == Principal("argon2")


def test_check_that_has_ended_is_not_verified_any_more(tmp_path: Path) -> None:
    """The thread of a check whose time was over comes to it late."""
    checks = Checks(tmp_path)
    check = checks.begin()
    fail(checks, check, TimeoutError())
    assert isinstance(check.exception(0), TooManyRequestsError)
    with pytest.raises(TooManyRequestsError, match="left"):
        checks.core.verify(check)
    assert checks.ends == ["limited"]


def test_repeated_check_needs_neither_a_place_in_the_queue_nor_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = Checks(tmp_path, attempts_per_minute="1", cache="1s")
    checks.conduct(checks.begin())
    checks.clock.advance(1)
    monkeypatch.setattr(passwords, "MAX_QUEUED_CHECKS", 0)
    checks.conduct(again := checks.begin())
    assert again.result(0) == Principal("argon2")
    checks.conduct(first := checks.begin(b"argon2:other"))
    assert isinstance(first.exception(0), TooManyRequestsError)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["admit", "fail", "end"]))))
def test_every_place_in_the_queue_is_given_back(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    checks = Checks(tmp_path_factory.mktemp("users"), attempts_per_minute="0")
    open_checks: dict[int, PasswordCheck] = {}
    for number, step in steps:
        if step == "admit" and number not in open_checks:
            check = open_checks[number] = checks.begin(f"user{number}:x".encode())
            checks.core.admit(check)
        elif number in open_checks:
            with checks.core.conducted(open_checks.pop(number)):
                if step == "fail":
                    raise RouterError
    for check in open_checks.values():
        with checks.core.conducted(check):
            check.right = False
    assert checks.core._queued == 0
    assert checks.core._checks == {}


@pytest.mark.parametrize("data", [b"", b"anna", b":secret", b"\xff:x"])
def test_credentials_that_cannot_be_read_begin_no_check(tmp_path: Path, data: bytes) -> None:
    checks = Checks(tmp_path)
    with pytest.raises(UnauthenticatedError):
        checks.core.begin(data, ADDRESS, lambda: False)
    assert checks.core._checks == {}
