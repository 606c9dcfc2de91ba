"""Who clients of the broker's listeners are, and what they may do, beside any protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router.access import passwords
from router.access.authorizer import ANONYMOUS, TOPIC_RECORDS, TopicRights
from router.access.passwords import Users
from router.access.permissions import Right
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.pulsar.authorization import authorized_handlers
from router.broker.transport.authentication import BASIC, ClientCredentials, ListenerAuthorizer
from router.broker.transport.topic_rights import TopicRightsRegistry
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


def credentials(
    name: str = "argon2", password: str = "secret", address: str = "10.0.0.1"
) -> ClientCredentials:
    return ClientCredentials(BASIC, f"{name}:{password}".encode(), address)


@asynccontextmanager
async def opened(
    folder: Path,
    *,
    permissions: str | None = None,
    users: bool = True,
    clock: ManualClock | None = None,
    **more: str,
) -> AsyncIterator[tuple[ListenerAuthorizer, TopicRightsRegistry]]:
    """Open an authorizer whose users have the password `secret`."""
    given = {name.replace("_", ".", 1): text for name, text in more.items()}
    if users:
        (folder / "users").write_text("".join(f"{name}:{h}\n" for name, h in HASHES.items()))
        given["auth.users"] = str(folder / "users")
    if permissions is not None:
        (folder / "permissions").write_text(permissions)
        given["auth.permissions"] = str(folder / "permissions")
    now = clock or ManualClock()
    registry = await FileRegistry.open(folder)
    owners = TopicRightsRegistry(registry)
    await owners.load()
    authorizer = ListenerAuthorizer(load(None, {}, given), owners, NodeCounters(now), now, now)
    try:
        yield authorizer, owners
    finally:
        authorizer.close()
        await registry.close()


async def test_everybody_is_anonymous_and_may_everything_when_nobody_is_asked(folder: Path) -> None:
    async with opened(folder, users=False) as (authorizer, _):
        assert authorizer.open
        for method in ("", "none", "token", BASIC, "tls", "anything"):
            login = authorizer.known(ClientCredentials(method, b"anna:x", ""))
            assert login is not None
            assert login.principal == ANONYMOUS
        authorizer.authorize_name(ANONYMOUS, ORDERS, Right.PUBLISH)


@pytest.mark.parametrize("users", [False, True])
async def test_certificate_names_its_client_unless_it_shows_something_else(
    folder: Path, users: bool
) -> None:
    async with opened(folder, users=users) as (authorizer, _):
        for method in ("", "none", "tls"):
            login = authorizer.known(ClientCredentials(method, b"", "", "device"))
            assert login is not None
            assert login.principal == Principal("device")
        if users:
            with pytest.raises(UnauthenticatedError):
                authorizer.known(ClientCredentials("token", b"", "", "device"))


@pytest.mark.parametrize("kind", sorted(HASHES))
async def test_password_is_checked_once_and_then_known_for_a_while(folder: Path, kind: str) -> None:
    clock = ManualClock()
    async with opened(folder, clock=clock) as (authorizer, _):
        assert authorizer.known(credentials(kind)) is None
        assert (await authorizer.check(credentials(kind))).principal.name == kind
        login = authorizer.known(credentials(kind))
        assert login is not None
        assert login.principal.name == kind
        assert authorizer.known(credentials(kind, "wrong")) is None
        with pytest.raises(UnauthenticatedError):
            await authorizer.check(credentials(kind, "wrong"))
        clock.advance(60)
        assert authorizer.known(credentials(kind)) is None


async def test_the_version_of_rights_changes_with_them(folder: Path) -> None:
    clock = ManualClock()
    async with opened(folder, clock=clock, permissions="* * publish") as (authorizer, owners):

        async def changes(change: Callable[[], Awaitable[object]]) -> bool:
            before = authorizer.version
            await change()
            return authorizer.version != before

        async def rewritten() -> None:
            (folder / "permissions").write_text("* * subscribe")
            clock.advance(1)

        assert not await changes(lambda: owners.put("other", "t", b"{}", None))
        assert await changes(lambda: owners.put(TOPIC_RECORDS, "t", OWNED.dump(), None))
        assert await changes(lambda: owners.delete(TOPIC_RECORDS, "t"))
        assert await changes(rewritten)
        assert not await changes(lambda: owners.get(TOPIC_RECORDS, "t"))


async def test_checks_run_beside_the_loop_and_equal_ones_are_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    verify = Users.verify

    def seen(self: Users, name: str, password: str) -> bool:
        threads.append(threading.current_thread().name)
        return verify(self, name, password)

    monkeypatch.setattr(Users, "verify", seen)
    async with opened(folder) as (authorizer, _):
        found = await asyncio.gather(*(authorizer.check(credentials()) for _ in range(20)))
        assert {login.principal.name for login in found} == {"argon2"}
    assert len(threads) == 1
    assert threads[0].startswith("passwords")


async def test_checks_are_rationed_for_each_user_and_address(folder: Path) -> None:
    async with opened(folder, auth_attempts_per_minute="3") as (authorizer, _):
        for number in range(3):
            with pytest.raises(UnauthenticatedError):
                await authorizer.check(credentials(password=f"guess {number}"))
        with pytest.raises(TooManyRequestsError) as refusal:
            await authorizer.check(credentials())
        assert refusal.value.retry_after == pytest.approx(20, abs=1)
        await authorizer.check(credentials(address="10.0.0.2"))
        await authorizer.check(credentials("apr1"))


async def test_checks_that_wait_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(passwords, "MAX_QUEUED_CHECKS", 2)
    monkeypatch.setattr(Users, "verify", lambda *_: free.wait(10))
    async with opened(folder) as (authorizer, _):
        waiting = [
            asyncio.ensure_future(authorizer.check(credentials(name))) for name in ("a", "b")
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequestsError):
            await authorizer.check(credentials("c"))
        free.set()
        await asyncio.gather(*waiting)
        await authorizer.check(credentials("c"))


async def test_failed_checks_of_an_address_are_limited_and_known_credentials_are_not(
    folder: Path,
) -> None:
    clock = ManualClock()
    async with opened(folder, clock=clock, auth_cache="1s", auth_failures_per_minute="2") as (
        authorizer,
        _,
    ):
        await authorizer.check(credentials())
        for number in range(2):
            with pytest.raises(UnauthenticatedError):
                await authorizer.check(credentials(f"stranger{number}"))
        clock.advance(1)
        for refused in (credentials("apr1"), credentials("stranger")):
            with pytest.raises(TooManyRequestsError, match="from this address"):
                await authorizer.check(refused)
        await authorizer.check(credentials())
        await authorizer.check(credentials("apr1", address="10.0.0.2"))


async def test_known_credentials_do_not_wait_behind_strangers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, clock, verify = threading.Event(), ManualClock(), Users.verify

    def slow(users: Users, name: str, password: str) -> bool:
        assert name == "argon2" or free.wait(20)
        return verify(users, name, password)

    monkeypatch.setattr(Users, "verify", slow)
    monkeypatch.setattr(passwords, "MAX_QUEUED_CHECKS", 4)
    async with opened(folder, clock=clock) as (authorizer, _):
        await authorizer.check(credentials())
        strangers = [
            asyncio.ensure_future(authorizer.check(credentials(f"stranger{n}"))) for n in range(4)
        ]
        await asyncio.sleep(0)
        clock.advance(60)
        assert authorizer.known(credentials()) is None
        assert (await authorizer.check(credentials())).principal.name == "argon2"
        free.set()
        await asyncio.gather(*strangers, return_exceptions=True)


async def test_checks_whose_clients_have_left_are_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, checked = threading.Event(), []

    def slow(_users: Users, name: str, _password: str) -> bool:
        checked.append(name)
        return free.wait(20)

    monkeypatch.setattr(Users, "verify", slow)
    async with opened(folder) as (authorizer, _):
        left: list[str] = []
        names = ["a", "b", "leaves", "stays"]
        waiting = [
            asyncio.ensure_future(authorizer.check(credentials(name), partial(_is_in, left, name)))
            for name in names
        ]
        joined = asyncio.ensure_future(authorizer.check(credentials("stays"), lambda: False))
        await asyncio.sleep(0)
        left += ["leaves", "stays"]
        free.set()
        *done, dropped, stayed = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(dropped, TooManyRequestsError)
        assert not any(isinstance(found, BaseException) for found in (*done, stayed, await joined))
    assert sorted(checked) == ["a", "b", "stays"]


async def test_check_goes_on_for_others_when_its_first_client_is_cancelled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, verify = threading.Event(), Users.verify

    def slow(users: Users, name: str, password: str) -> bool:
        assert free.wait(20)
        return verify(users, name, password)

    monkeypatch.setattr(Users, "verify", slow)
    async with opened(folder) as (authorizer, _):
        first = asyncio.ensure_future(authorizer.check(credentials()))
        joined = asyncio.ensure_future(authorizer.check(credentials()))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        free.set()
        assert (await joined).principal.name == "argon2"


def _is_in(names: list[str], name: str) -> bool:
    return name in names


@pytest.mark.parametrize("data", [b"", b"anna", b":secret", b"\xff:x"])
async def test_credentials_that_cannot_be_read_are_refused(folder: Path, data: bytes) -> None:
    async with opened(folder) as (authorizer, _):
        assert authorizer.known(ClientCredentials(BASIC, data, "")) is None
        with pytest.raises(UnauthenticatedError):
            await authorizer.check(ClientCredentials(BASIC, data, ""))


async def test_rights_on_a_topic_hold_for_its_partitions_and_nothing_else(folder: Path) -> None:
    async with opened(folder, permissions="anna orders publish\n") as (authorizer, _):
        for name in ("orders", ORDERS, f"{ORDERS}-partition-3"):
            authorizer.authorize_name(ANNA, name, Right.PUBLISH)
            with pytest.raises(ForbiddenError):
                authorizer.authorize_name(BERT, name, Right.PUBLISH)
            with pytest.raises(ForbiddenError):
                authorizer.authorize_name(ANNA, name, Right.SUBSCRIBE)
        for name in ("orders2", f"{ORDERS}-partition-", f"{ORDERS}-partition-x"):
            with pytest.raises(ForbiddenError):
                authorizer.authorize_name(ANNA, name, Right.PUBLISH)
        with pytest.raises(BadNameError):
            authorizer.authorize_name(ANNA, "a topic", Right.PUBLISH)


@pytest.mark.parametrize("how", [{}, {"users": False, "acl_enforce": "true"}])
async def test_owners_and_lists_hold_where_they_count(folder: Path, how: dict[str, Any]) -> None:
    async with opened(folder, **how) as (authorizer, owners):
        authorizer.authorize_name(BERT, ORDERS, Right.PUBLISH)
        await owners.put(TOPIC_RECORDS, ORDERS, OWNED.dump(), 0)
        for name in (ORDERS, f"{ORDERS}-partition-0"):
            authorizer.authorize_name(ANNA, name, Right.PUBLISH)
            authorizer.authorize_name(BERT, name, Right.SUBSCRIBE)
            authorizer.authorize_name(BERT, name, Right.VIEW)
            with pytest.raises(AccessDeniedError):
                authorizer.authorize_name(BERT, name, Right.PUBLISH)
            with pytest.raises(AccessDeniedError):
                authorizer.authorize_name(ANONYMOUS, name, Right.SUBSCRIBE)
        assert await owners.delete(TOPIC_RECORDS, ORDERS)
        authorizer.authorize_name(BERT, ORDERS, Right.PUBLISH)


@pytest.mark.parametrize("owned", ["", "-partition-0", "-partition-0-partition-1"])
async def test_every_topic_that_a_name_may_be_of_guards_it(folder: Path, owned: str) -> None:
    """A name as of a partition may be a topic with an owner of its own, or one of such a topic."""
    async with opened(folder) as (authorizer, owners):
        await owners.put(TOPIC_RECORDS, ORDERS + owned, TopicRights(owner="anna").dump(), 0)
        for name in (f"{ORDERS}-partition-0-partition-1", f"orders{owned}-partition-7"):
            authorizer.authorize_name(ANNA, name, Right.SUBSCRIBE)
            for right in (Right.SUBSCRIBE, Right.PUBLISH):
                with pytest.raises(AccessDeniedError):
                    authorizer.authorize_name(BERT, name, right)
        if owned:
            authorizer.authorize_name(BERT, ORDERS, Right.SUBSCRIBE)


async def test_owners_and_lists_mean_nothing_where_they_do_not_count(folder: Path) -> None:
    async with opened(folder, acl_enforce="false") as (authorizer, owners):
        await owners.put(TOPIC_RECORDS, ORDERS, OWNED.dump(), 0)
        authorizer.authorize_name(BERT, ORDERS, Right.PUBLISH)


async def test_owners_know_what_was_written_before_they_were_asked(folder: Path) -> None:
    async with opened(folder) as (_, owners):
        for number in range(3):
            await owners.put(TOPIC_RECORDS, f"{ORDERS}{number}", OWNED.dump(), 0)
        await owners.put("key", ORDERS, b"{}", 0)
    async with opened(folder) as (_, owners):
        found = [owners.cached(TopicName.parse(f"orders{number}")) for number in range(3)]
        assert found == [OWNED] * 3
        assert owners.cached(TopicName.parse("orders")) == TopicRights()
        assert [record.name for record in await owners.list("key")] == [ORDERS]
        assert await owners.get("key", ORDERS) is not None
        assert await owners.delete("key", ORDERS)


async def test_names_are_shown_to_whom_they_may_be(folder: Path) -> None:
    async with opened(folder, permissions="anna orders publish\nops * manage\n") as (authorizer, _):
        orders = TopicName.parse(f"{ORDERS}-partition-0")
        everything, some, none = Principal("ops"), ANNA, BERT
        assert [authorizer.sees_all(who) for who in (everything, some, none)] == [
            True,
            False,
            False,
        ]
        assert [authorizer.sees(who, orders) for who in (everything, some, none)] == [
            True,
            True,
            False,
        ]
        assert [authorizer.administers(who) for who in (everything, some)] == [True, False]


@pytest.mark.parametrize(("name", "makes"), [("looker", False), ("reader", True), ("writer", True)])
async def test_asking_for_partitions_makes_a_topic_only_for_whom_it_is_of_use(
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

    async with opened(folder, auth_aaf=str(folder / "aaf")) as (authorizer, _):
        kind = pb.BaseCommand.PARTITIONED_METADATA
        identity = SimpleNamespace(trusted=False, principal=Principal(name), authorizer=authorizer)
        client: Any = SimpleNamespace(identity=identity)
        found = authorized_handlers({kind: handler}, client)
        found[kind](Frame(command(kind, topic=ORDERS, request_id=1), b""))
        assert handed == [makes]
