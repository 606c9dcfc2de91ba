"""Who clients of the broker's listeners are, and what they may do, beside any protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.access.owners import KIND, TopicRights
from router.access.permissions import Right
from router.access.users import Users
from router.broker import passwords
from router.broker.counters import Counters
from router.broker.gate import ANONYMOUS, BASIC, Gate, Shown
from router.broker.owners import Owners
from router.broker.pulsar.authorisation import guarded
from router.broker.registry import FileRegistry
from router.errors import (
    AccessDeniedError,
    BadNameError,
    ForbiddenError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from router.model import Principal, TopicName
from router.settings import load
from router.wire.pulsar import Frame, command
from router.wire.pulsar import pulsar_pb2 as pb
from tests.processes import ManualClock
from tests.unit.web.applications import HASHES

ANNA, BERT = Principal("anna"), Principal("bert")
ORDERS = "persistent://public/default/orders"
OWNED = TopicRights(owner="anna", readers=frozenset({"bert"}))
Test = Callable[[Gate, Owners], Awaitable[None]]


def shown(name: str = "argon2", password: str = "secret", address: str = "10.0.0.1") -> Shown:
    return Shown(BASIC, f"{name}:{password}".encode(), address)


def opened(
    folder: Path,
    test: Test,
    *,
    permissions: str | None = None,
    users: bool = True,
    clock: ManualClock | None = None,
    **more: str,
) -> None:
    """Run a test on a gate whose users have the password `secret`."""
    given = {name.replace("_", ".", 1): text for name, text in more.items()}
    if users:
        (folder / "users").write_text("".join(f"{name}:{h}\n" for name, h in HASHES.items()))
        given["auth.users"] = str(folder / "users")
    if permissions is not None:
        (folder / "permissions").write_text(permissions)
        given["auth.permissions"] = str(folder / "permissions")
    now = clock or ManualClock()

    async def run() -> None:
        registry = await FileRegistry.open(folder)
        owners = Owners(registry)
        await owners.load()
        gate = Gate(load(None, {}, given), owners, Counters(now), now, now)
        try:
            await test(gate, owners)
        finally:
            gate.close()
            await registry.close()

    asyncio.run(run())


def test_everybody_is_anonymous_and_may_everything_when_nobody_is_asked(folder: Path) -> None:
    async def test(gate: Gate, _: Owners) -> None:
        assert gate.open
        for method in ("", "none", "token", BASIC, "tls", "anything"):
            login = gate.known(Shown(method, b"anna:x", ""))
            assert login is not None
            assert login.principal == ANONYMOUS
        gate.demand(ANONYMOUS, ORDERS, Right.PUBLISH)

    opened(folder, test, users=False)


@pytest.mark.parametrize("users", [False, True])
def test_certificate_names_its_client_unless_it_shows_something_else(
    folder: Path, users: bool
) -> None:
    async def test(gate: Gate, _: Owners) -> None:
        for method in ("", "none", "tls"):
            login = gate.known(Shown(method, b"", "", "device"))
            assert login is not None
            assert login.principal == Principal("device")
        if users:
            with pytest.raises(UnauthenticatedError):
                gate.known(Shown("token", b"", "", "device"))

    opened(folder, test, users=users)


@pytest.mark.parametrize("kind", sorted(HASHES))
def test_password_is_checked_once_and_then_known_for_a_while(folder: Path, kind: str) -> None:
    clock = ManualClock()

    async def test(gate: Gate, _: Owners) -> None:
        assert gate.known(shown(kind)) is None
        assert (await gate.check(shown(kind))).principal.name == kind
        login = gate.known(shown(kind))
        assert login is not None
        assert login.principal.name == kind
        assert gate.known(shown(kind, "wrong")) is None
        with pytest.raises(UnauthenticatedError):
            await gate.check(shown(kind, "wrong"))
        clock.advance(60)
        assert gate.known(shown(kind)) is None

    opened(folder, test, clock=clock)


def test_checks_run_beside_the_loop_and_equal_ones_are_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    verify = Users.verify

    def seen(self: Users, name: str, password: str) -> bool:
        threads.append(threading.current_thread().name)
        return verify(self, name, password)

    monkeypatch.setattr(Users, "verify", seen)

    async def test(gate: Gate, _: Owners) -> None:
        found = await asyncio.gather(*(gate.check(shown()) for _ in range(20)))
        assert {login.principal.name for login in found} == {"argon2"}

    opened(folder, test)
    assert len(threads) == 1
    assert threads[0].startswith("passwords")


def test_checks_are_rationed_for_each_user_and_address(folder: Path) -> None:
    async def test(gate: Gate, _: Owners) -> None:
        for number in range(3):
            with pytest.raises(UnauthenticatedError):
                await gate.check(shown(password=f"guess {number}"))
        with pytest.raises(TooManyRequestsError) as refusal:
            await gate.check(shown())
        assert refusal.value.retry_after == pytest.approx(20, abs=1)
        await gate.check(shown(address="10.0.0.2"))
        await gate.check(shown("apr1"))

    opened(folder, test, auth_attempts_per_minute="3")


def test_checks_that_wait_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(passwords, "MAX_QUEUED_CHECKS", 2)
    monkeypatch.setattr(Users, "verify", lambda *_: free.wait(10))

    async def test(gate: Gate, _: Owners) -> None:
        waiting = [asyncio.ensure_future(gate.check(shown(name))) for name in ("a", "b")]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequestsError):
            await gate.check(shown("c"))
        free.set()
        await asyncio.gather(*waiting)
        await gate.check(shown("c"))

    opened(folder, test)


def test_failed_checks_of_an_address_are_limited_and_known_credentials_are_not(
    folder: Path,
) -> None:
    clock = ManualClock()

    async def test(gate: Gate, _: Owners) -> None:
        await gate.check(shown())
        for number in range(2):
            with pytest.raises(UnauthenticatedError):
                await gate.check(shown(f"stranger{number}"))
        clock.advance(1)
        for refused in (shown("apr1"), shown("stranger")):
            with pytest.raises(TooManyRequestsError, match="from this address"):
                await gate.check(refused)
        await gate.check(shown())
        await gate.check(shown("apr1", address="10.0.0.2"))

    opened(folder, test, clock=clock, auth_cache="1s", auth_failures_per_minute="2")


def test_known_credentials_do_not_wait_behind_strangers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, clock, verify = threading.Event(), ManualClock(), Users.verify

    def slow(users: Users, name: str, password: str) -> bool:
        assert name == "argon2" or free.wait(20)
        return verify(users, name, password)

    monkeypatch.setattr(Users, "verify", slow)
    monkeypatch.setattr(passwords, "MAX_QUEUED_CHECKS", 4)

    async def test(gate: Gate, _: Owners) -> None:
        await gate.check(shown())
        strangers = [asyncio.ensure_future(gate.check(shown(f"stranger{n}"))) for n in range(4)]
        await asyncio.sleep(0)
        clock.advance(60)
        assert gate.known(shown()) is None
        assert (await gate.check(shown())).principal.name == "argon2"
        free.set()
        await asyncio.gather(*strangers, return_exceptions=True)

    opened(folder, test, clock=clock)


def test_checks_whose_clients_have_left_are_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, checked = threading.Event(), []

    def slow(_users: Users, name: str, _password: str) -> bool:
        checked.append(name)
        return free.wait(20)

    monkeypatch.setattr(Users, "verify", slow)

    async def test(gate: Gate, _: Owners) -> None:
        left: list[str] = []
        names = ["a", "b", "leaves", "stays"]
        waiting = [
            asyncio.ensure_future(gate.check(shown(name), partial(_is_in, left, name)))
            for name in names
        ]
        joined = asyncio.ensure_future(gate.check(shown("stays"), lambda: False))
        await asyncio.sleep(0)
        left += ["leaves", "stays"]
        free.set()
        *done, dropped, stayed = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(dropped, TooManyRequestsError)
        assert not any(isinstance(found, BaseException) for found in (*done, stayed, await joined))

    opened(folder, test)
    assert sorted(checked) == ["a", "b", "stays"]


def _is_in(names: list[str], name: str) -> bool:
    return name in names


@pytest.mark.parametrize("data", [b"", b"anna", b":secret", b"\xff:x"])
def test_credentials_that_cannot_be_read_are_refused(folder: Path, data: bytes) -> None:
    async def test(gate: Gate, _: Owners) -> None:
        assert gate.known(Shown(BASIC, data, "")) is None
        with pytest.raises(UnauthenticatedError):
            await gate.check(Shown(BASIC, data, ""))

    opened(folder, test)


def test_rights_on_a_topic_hold_for_its_partitions_and_nothing_else(folder: Path) -> None:
    async def test(gate: Gate, _: Owners) -> None:
        for name in ("orders", ORDERS, f"{ORDERS}-partition-3"):
            gate.demand(ANNA, name, Right.PUBLISH)
            with pytest.raises(ForbiddenError):
                gate.demand(BERT, name, Right.PUBLISH)
            with pytest.raises(ForbiddenError):
                gate.demand(ANNA, name, Right.SUBSCRIBE)
        for name in ("orders2", f"{ORDERS}-partition-", f"{ORDERS}-partition-x"):
            with pytest.raises(ForbiddenError):
                gate.demand(ANNA, name, Right.PUBLISH)
        with pytest.raises(BadNameError):
            gate.demand(ANNA, "a topic", Right.PUBLISH)

    opened(folder, test, permissions="anna orders publish\n")


def test_owners_and_lists_hold_where_they_count(folder: Path) -> None:
    async def test(gate: Gate, owners: Owners) -> None:
        gate.demand(BERT, ORDERS, Right.PUBLISH)
        await owners.put(KIND, ORDERS, OWNED.dump(), 0)
        for name in (ORDERS, f"{ORDERS}-partition-0"):
            gate.demand(ANNA, name, Right.PUBLISH)
            gate.demand(BERT, name, Right.SUBSCRIBE)
            gate.demand(BERT, name, Right.VIEW)
            with pytest.raises(AccessDeniedError):
                gate.demand(BERT, name, Right.PUBLISH)
            with pytest.raises(AccessDeniedError):
                gate.demand(ANONYMOUS, name, Right.SUBSCRIBE)
        assert await owners.delete(KIND, ORDERS)
        gate.demand(BERT, ORDERS, Right.PUBLISH)

    opened(folder, test)
    opened(folder, test, users=False, acl_enforce="true")


@pytest.mark.parametrize("owned", ["", "-partition-0", "-partition-0-partition-1"])
def test_every_topic_that_a_name_may_be_of_guards_it(folder: Path, owned: str) -> None:
    """A name as of a partition may be a topic with an owner of its own, or one of such a topic."""

    async def test(gate: Gate, owners: Owners) -> None:
        await owners.put(KIND, ORDERS + owned, TopicRights(owner="anna").dump(), 0)
        for name in (f"{ORDERS}-partition-0-partition-1", f"orders{owned}-partition-7"):
            gate.demand(ANNA, name, Right.SUBSCRIBE)
            for right in (Right.SUBSCRIBE, Right.PUBLISH):
                with pytest.raises(AccessDeniedError):
                    gate.demand(BERT, name, right)
        if owned:
            gate.demand(BERT, ORDERS, Right.SUBSCRIBE)

    opened(folder, test)


def test_owners_and_lists_mean_nothing_where_they_do_not_count(folder: Path) -> None:
    async def test(gate: Gate, owners: Owners) -> None:
        await owners.put(KIND, ORDERS, OWNED.dump(), 0)
        gate.demand(BERT, ORDERS, Right.PUBLISH)

    opened(folder, test, acl_enforce="false")


def test_owners_know_what_was_written_before_they_were_asked(folder: Path) -> None:
    async def test(_: Gate, owners: Owners) -> None:
        for number in range(3):
            await owners.put(KIND, f"{ORDERS}{number}", OWNED.dump(), 0)
        await owners.put("key", ORDERS, b"{}", 0)

    async def again(_: Gate, owners: Owners) -> None:
        found = [owners.rights(TopicName.parse(f"orders{number}")) for number in range(3)]
        assert found == [OWNED] * 3
        assert owners.rights(TopicName.parse("orders")) == TopicRights()
        assert [record.name for record in await owners.list("key")] == [ORDERS]
        assert await owners.get("key", ORDERS) is not None
        assert await owners.delete("key", ORDERS)

    opened(folder, test)
    opened(folder, again)


def test_names_are_shown_to_whom_they_may_be(folder: Path) -> None:
    async def test(gate: Gate, _: Owners) -> None:
        orders = TopicName.parse(f"{ORDERS}-partition-0")
        everything, some, none = Principal("ops"), ANNA, BERT
        assert [gate.sees_all(who) for who in (everything, some, none)] == [True, False, False]
        assert [gate.sees(who, orders) for who in (everything, some, none)] == [True, True, False]
        assert [gate.administers(who) for who in (everything, some)] == [True, False]

    opened(folder, test, permissions="anna orders publish\nops * manage\n")


@pytest.mark.parametrize(("name", "makes"), [("looker", False), ("reader", True), ("writer", True)])
def test_asking_for_partitions_makes_a_topic_only_for_whom_it_is_of_use(
    folder: Path, name: str, makes: bool
) -> None:
    (folder / "aaf").write_text(
        "looker org.onap.dmaap.mr.topic|*|view\n"
        "reader org.onap.dmaap.mr.topic|*|sub\n"
        "writer org.onap.dmaap.mr.topic|*|pub\n"
    )
    handed: list[bool] = []

    def handler(frame: Frame) -> None:
        handed.append(frame.command.partitionMetadata.metadata_auto_creation_enabled)

    async def test(gate: Gate, _owners: Owners) -> None:
        kind = pb.BaseCommand.PARTITIONED_METADATA
        connection: Any = SimpleNamespace(trusted=False)
        who: Any = SimpleNamespace(principal=Principal(name))
        found = guarded({kind: handler}, connection, who, gate)
        found[kind](Frame(command(kind, topic=ORDERS, request_id=1), b""))
        assert handed == [makes]

    opened(folder, test, auth_aaf=str(folder / "aaf"))
