"""Who makes a request, and whether they may."""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.access import passwords, tokens
from router.access.passwords import PasswordCheck, PasswordChecks, Users, parse_users
from router.access.permissions import Rule
from router.backends.memory import MemoryNode
from router.errors import (
    ForbiddenError,
    SettingError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from router.metrics import Metrics
from router.model import Principal, TopicName
from router.services.keys import Keys
from router.services.rights import Rights
from router.settings import Settings, load
from router.web.access import Permissions, RequestAuthorizer, Right, Signatures, WorkerPasswords
from router.web.tls import NAME_KEY
from tests.processes import ManualClock, wait_until
from tests.unit.web.applications import CHEAP, HASHES, header

Clock = Callable[[], float]
TOPIC = TopicName.parse("orders.eu")


def site(settings: Settings, node: MemoryNode, metrics: Metrics, clock: Clock) -> RequestAuthorizer:
    """Put the parts of access together."""
    checked = None
    if settings.text("auth.users"):
        checked = WorkerPasswords(settings, node, metrics, clock)
    signatures = Signatures(Keys(node.registry, 1, clock), "", 600, lambda: 0)
    clocks = clock, clock
    return RequestAuthorizer(settings, checked, signatures, Rights(node.registry, 1, clock), clocks)


def request(authorization: str | None, address: str) -> dict[str, str]:
    """Return what a server says of a request."""
    given = {} if authorization is None else {"HTTP_AUTHORIZATION": authorization}
    return given | {"REMOTE_ADDR": address}


class GuardedSite:
    """Access with a users file, and maybe a permissions file, that tests rewrite."""

    def __init__(self, folder: Path, permissions: str | None = None, **settings: str) -> None:
        self.clock = ManualClock()
        self.users = folder / "users"
        self.permissions = folder / "permissions"
        self.users.write_text("".join(f"{name}:{h}\n" for name, h in HASHES.items()))
        variables = {f"ROUTER_{name.upper()}": value for name, value in settings.items()}
        variables["ROUTER_AUTH_USERS"] = str(self.users)
        if permissions is not None:
            self.permissions.write_text(permissions)
            variables["ROUTER_AUTH_PERMISSIONS"] = str(self.permissions)
        self.node = MemoryNode(clock=self.clock)
        self.metrics = Metrics()
        self.access = site(load(None, variables), self.node, self.metrics, self.clock)

    def rewrite(self, file: Path, text: str) -> None:
        """Change a file so that its time of change differs, and let a second pass."""
        file.write_text(text)
        os.utime(file, (self.clock.now, self.clock.now))
        self.clock.advance(1)

    def check(self, name: str, password: str, address: str = "10.0.0.1") -> str:
        """Return who these credentials are."""
        return self.access.principal(request(header(name, password), address)).name

    def logins(self) -> dict[str, float]:
        """Return how many checks ended how."""
        return {labels[0][1]: n for _, labels, n in self.metrics.drain().counters}


@pytest.mark.parametrize("guard", ["", "users", "tokens", "users and tokens"])
def test_who_repeats_a_head_is_who_sent_it(guard: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "users").write_text(f"anna:{HASHES['argon2']}\n")
    given = {"auth.users": str(tmp_path / "users")} if "users" in guard else {}
    if "tokens" in guard:
        given["auth.token_secret_file"] = str(tmp_path / "secret")
    access = site(load(None, {}, given), MemoryNode(), Metrics(), ManualClock())
    right, repeated = header("anna", "secret"), 0
    scheme = right.partition(" ")[2]
    for sent in (None, right, header("anna", "no"), f"Bearer {scheme}", bearer("anna"), "Basic !"):
        for more in ({}, {"HTTP_X_CAMBRIAAUTH": "key:x"}, {"HTTP_X_AUTH": "key:x"}):
            for named in ({}, {NAME_KEY: "carl"}):
                environ = request(sent, "10.0.0.1") | more | named
                try:
                    principal = access.principal(dict(environ))
                except UnauthenticatedError:
                    principal = None
                try:
                    who = access.repeated(environ)
                except UnauthenticatedError:
                    who = None
                if who is not None:
                    assert who() == principal
                    repeated += 1
                assert who is None or not more, "a signature counts for one request"
    assert repeated == {"": 12, "users": 5, "tokens": 1, "users and tokens": 5}[guard]


def test_everybody_is_anonymous_without_a_users_file() -> None:
    access = site(load(None, {}), MemoryNode(), Metrics(), time.monotonic)
    for sent in (None, "", "Basic !!", header("a", "b")):
        assert access.principal(request(sent, "10.0.0.1")) == Principal()
    access.authorize(Principal(), TOPIC, Right.MANAGE)


SECRET = b"s" * 32


def bearer(name: str, secret: bytes = SECRET, expires: float | None = None) -> str:
    claims = {"sub": name} | ({} if expires is None else {"exp": expires})
    return f"Bearer {tokens.signed(tokens.TokenKey('HS256', secret), claims)}"


def with_tokens(folder: Path, **settings: str) -> RequestAuthorizer:
    (folder / "secret").write_bytes(SECRET)
    given = {name.replace("_", ".", 1): text for name, text in settings.items()}
    given["auth.token_secret_file"] = str(folder / "secret")
    loaded, node, clock = load(None, {}, given), MemoryNode(), ManualClock()
    checked = WorkerPasswords(loaded, node, Metrics(), clock) if "auth.users" in given else None
    signatures = Signatures(Keys(node.registry, 1, clock), "", 600, lambda: 0)
    clocks = clock, clock
    return RequestAuthorizer(loaded, checked, signatures, Rights(node.registry, 1, clock), clocks)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_token_names_who_makes_a_request(tmp_path: Path, scheme: str) -> None:
    sent = bearer("anna", expires=1_001).replace("Bearer", scheme)
    assert with_tokens(tmp_path).principal(request(sent, "10.0.0.1")) == Principal("anna")


def test_token_and_password_name_the_same_user_with_the_same_rights(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"anna:{HASHES['argon2']}\n")
    (tmp_path / "permissions").write_text("anna orders.* publish\n")
    files = {f"auth_{name}": str(tmp_path / name) for name in ("users", "permissions")}
    access = with_tokens(tmp_path, **files)
    for sent in (bearer("anna"), header("anna", "secret")):
        principal = access.principal(request(sent, "10.0.0.1"))
        access.authorize(principal, TOPIC, Right.PUBLISH)
        with pytest.raises(ForbiddenError):
            access.authorize(principal, TOPIC, Right.SUBSCRIBE)


def test_http_needs_the_right_on_a_partition_and_on_its_topic(tmp_path: Path) -> None:
    """With Apache Kafka as the store, `orders-partition-0` may be a topic of its own."""
    (tmp_path / "permissions").write_text("anna orders* publish\nbert orders publish\n")
    access = with_tokens(tmp_path, auth_permissions=str(tmp_path / "permissions"))
    part = TopicName.parse("orders-partition-0")
    access.authorize(Principal("anna"), part, Right.PUBLISH)
    with pytest.raises(ForbiddenError, match="no right to publish orders-partition-0"):
        access.authorize(Principal("bert"), part, Right.PUBLISH)


@pytest.mark.parametrize(
    "sent", [None, "", "Bearer", "Bearer a.b.c", bearer("a", b"x" * 32), bearer("a", expires=1_000)]
)
def test_request_without_a_good_token_is_refused(tmp_path: Path, sent: str | None) -> None:
    access = with_tokens(tmp_path)
    assert access.enforced
    for authorization in (sent, header("anna", "secret")):
        with pytest.raises(UnauthenticatedError):
            access.principal(request(authorization, "10.0.0.1"))


@pytest.mark.parametrize("kind", sorted(HASHES))
def test_password_is_verified_for_every_kind_of_hash(tmp_path: Path, kind: str) -> None:
    site = GuardedSite(tmp_path)
    assert site.check(kind, "secret") == kind
    with pytest.raises(UnauthenticatedError):
        site.check(kind, "wrong")
    assert site.logins() == {"verified": 1, "refused": 1}


@pytest.mark.parametrize(
    "sent",
    [None, "", "Basic", "Basic !!!", "Bearer abc", *(
        "Basic " + base64.b64encode(pair).decode() for pair in (b"nocolon", b":secret", b"\xff:x")
    )],
)  # fmt: skip
def test_credentials_that_cannot_be_read_are_refused(tmp_path: Path, sent: str | None) -> None:
    with pytest.raises(UnauthenticatedError):
        GuardedSite(tmp_path).access.principal(request(sent, "10.0.0.1"))


@pytest.mark.parametrize("password", ["", "x" * 2_000, "nul\0", "é" * 60])
@pytest.mark.parametrize("name", [*sorted(HASHES), "nobody"])
def test_odd_passwords_are_wrong_and_nothing_else(tmp_path: Path, name: str, password: str) -> None:
    with pytest.raises(UnauthenticatedError):
        GuardedSite(tmp_path).check(name, password)


def test_unknown_users_cost_a_check_like_known_ones(tmp_path: Path) -> None:
    users = Users(GuardedSite(tmp_path).users, time.monotonic)
    checked = []

    def matches(password: str, hashed: str) -> bool:
        checked.append(hashed)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_matches", matches)
        assert users.verify("argon2", "secret")
        assert not users.verify("nobody", "secret")
        assert not users.verify("nobody", "other")
    assert checked[0] == HASHES["argon2"]
    assert checked[1] in HASHES.values()
    assert checked[1] == checked[2]


def test_unknown_user_of_an_empty_file_costs_a_check(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# nobody yet\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_unused_hash", lambda: HASHES["argon2"])
        assert not Users(file, time.monotonic).verify("nobody", "secret")


def test_verified_credentials_are_remembered_for_a_while(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path, auth_cache="60s")
    assert [site.check("argon2", "secret") for _ in range(5)] == ["argon2"] * 5
    assert site.logins() == {"verified": 1}
    site.clock.advance(60)
    assert site.check("argon2", "secret") == "argon2"
    assert site.logins() == {"verified": 1}


def test_verified_credentials_are_forgotten_when_the_file_changes(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    site.check("argon2", "secret")
    site.rewrite(site.users, f"argon2:{CHEAP.hash('new')}\n")
    with pytest.raises(UnauthenticatedError):
        site.check("argon2", "secret")
    assert site.check("argon2", "new") == "argon2"


def test_broken_file_leaves_the_last_users_in_force(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path)
    site.rewrite(site.users, "argon2:plain text\n")
    assert site.check("argon2", "secret") == "argon2"
    site.users.unlink()
    site.clock.advance(1)
    assert site.check("bcrypt", "secret") == "bcrypt"


@pytest.mark.parametrize("text", ["argon2", "argon2:plain", ":x", "a:{SHA}abc", "a:$1$x$y"])
def test_users_file_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(f"# users\n\n{text}\n")
    with pytest.raises(SettingError, match="line 3"):
        Users(tmp_path / "users", time.monotonic)


def test_users_file_that_is_missing_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="users"):
        Users(tmp_path / "users", time.monotonic)


def test_checks_are_rationed_before_the_hash(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path, auth_attempts_per_minute="3")
    for guess in "abc":
        with pytest.raises(UnauthenticatedError):
            site.check("argon2", guess)
    with pytest.raises(TooManyRequestsError) as refused:
        site.check("argon2", "secret")
    assert refused.value.retry_after == pytest.approx(20)
    assert site.logins() == {"refused": 3, "limited": 1}
    assert site.check("argon2", "secret", "10.0.0.2") == "argon2"
    site.clock.advance(20)
    assert site.check("argon2", "secret") == "argon2"


def test_checks_are_rationed_for_all_addresses_of_a_client_together(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path, auth_attempts_per_minute="2")
    for number in range(2):
        with pytest.raises(UnauthenticatedError):
            site.check("argon2", f"guess{number}", f"2001:db8:0:1::{number}")
    with pytest.raises(TooManyRequestsError):
        site.check("argon2", "secret", "2001:db8:0:1::9")
    assert site.check("argon2", "secret", "2001:db8:0:2::9") == "argon2"


def test_remembered_credentials_need_no_ration(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path, auth_attempts_per_minute="1")
    assert [site.check("argon2", "secret") for _ in range(9)] == ["argon2"] * 9


def test_ration_of_zero_is_none(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path, auth_attempts_per_minute="0")
    for guess in range(9):
        with pytest.raises(UnauthenticatedError):
            site.check("argon2", str(guess))


@pytest.mark.parametrize("password", ["secret", "wrong"])
def test_requests_that_come_together_share_one_check(tmp_path: Path, password: str) -> None:
    site = GuardedSite(tmp_path, auth_attempts_per_minute="1")
    entered, go = threading.Event(), threading.Event()
    verify, begin = Users.verify, PasswordChecks.begin
    checks: list[PasswordCheck] = []

    def begun(self: PasswordChecks, *given: Any) -> tuple[PasswordCheck, bool]:
        found = begin(self, *given)
        checks.append(found[0])
        return found

    def slow(self: Users, name: str, given: str) -> bool:
        entered.set()
        assert go.wait(20)
        return verify(self, name, given)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as pool:
        patch.setattr(Users, "verify", slow)
        patch.setattr(PasswordChecks, "begin", begun)
        first = pool.submit(site.check, "argon2", password)
        assert entered.wait(20)
        others = [pool.submit(site.check, "argon2", password) for _ in range(7)]
        wait_until(lambda: len(checks[0].departures) == 8)
        go.set()
        results = [task.exception(20) or task.result() for task in (first, *others)]
    if password == "secret":
        assert results == ["argon2"] * 8
    else:
        assert all(isinstance(result, UnauthenticatedError) for result in results)
    assert sum(site.logins().values()) == 1


def test_permissions_deny_what_no_rule_grants(tmp_path: Path) -> None:
    site = GuardedSite(
        tmp_path,
        """
        # user   topics      rights
        billing  orders.*    publish, subscribe   # a comment
        ops      *           publish subscribe manage
        *        public.*    subscribe
        support  orders.*    browse
        """,
    )
    allows = site.access.allows
    granted = {
        (user, topic, right.value)
        for user in ("billing", "ops", "other", "support")
        for topic in ("orders.eu", "orders", "public.news")
        for right in Right
        if allows(Principal(user), TopicName.parse(topic), right)
    }
    everything = {(t, r.value) for t in ("orders.eu", "orders", "public.news") for r in Right}
    assert granted == {
        ("billing", "orders.eu", "publish"),
        ("billing", "orders.eu", "subscribe"),
        ("billing", "orders.eu", "browse"),
        ("billing", "orders.eu", "view"),
        ("billing", "public.news", "subscribe"),
        ("billing", "public.news", "browse"),
        ("billing", "public.news", "view"),
        ("other", "public.news", "subscribe"),
        ("other", "public.news", "browse"),
        ("support", "orders.eu", "browse"),
        ("support", "orders.eu", "view"),
        ("support", "public.news", "subscribe"),
        ("support", "public.news", "browse"),
        ("support", "public.news", "view"),
        ("other", "public.news", "view"),
    } | {("ops", topic, right) for topic, right in everything}
    with pytest.raises(ForbiddenError, match=r"billing: no right to manage orders.eu"):
        site.access.authorize(Principal("billing"), TOPIC, Right.MANAGE)
    assert site.access.users(TOPIC, Right.SUBSCRIBE) == ["billing", "ops"]


def test_permissions_change_with_their_file(tmp_path: Path) -> None:
    site = GuardedSite(tmp_path, "a orders.* publish\n")
    assert site.access.allows(Principal("a"), TOPIC, Right.PUBLISH)
    site.rewrite(site.permissions, "b orders.* publish\n")
    assert not site.access.allows(Principal("a"), TOPIC, Right.PUBLISH)
    assert site.access.allows(Principal("b"), TOPIC, Right.PUBLISH)
    site.rewrite(site.permissions, "b orders.* nonsense\n")
    assert site.access.allows(Principal("b"), TOPIC, Right.PUBLISH)


@pytest.mark.parametrize("text", ["a b", "a b c", "a o/* publish", "a * publish,own"])
def test_permissions_that_cannot_be_read_stop_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingError, match="line 1"):
        GuardedSite(tmp_path, text)


def test_answer_of_old_rules_is_not_kept_beside_new_ones(tmp_path: Path) -> None:
    file, clock = tmp_path / "permissions", ManualClock()
    file.write_text("old")

    class Slow(Rule):
        """A rule during whose look somebody else asks, and finds the file changed."""

        def covers(self, topic: str) -> bool:
            file.write_text("the new rules")
            clock.advance(1)
            assert not permissions.allows("anna", "other", Right.PUBLISH)
            return True

    slow = Slow("anna", re.compile(".*"), frozenset({Right.PUBLISH}), "*: publish")
    permissions = Permissions(file, clock, lambda text: [slow] if text == "old" else [])
    assert permissions.allows("anna", "t", Right.PUBLISH)
    assert not permissions.allows("anna", "t", Right.PUBLISH)


def test_permissions_need_users(tmp_path: Path) -> None:
    (tmp_path / "permissions").write_text("")
    settings = load(None, {"ROUTER_AUTH_PERMISSIONS": str(tmp_path / "permissions")})
    with pytest.raises(SettingError, match=r"auth\.users"):
        site(settings, MemoryNode(), Metrics(), time.monotonic)


@given(name=st.text(max_size=20), password=st.text(max_size=20))
def test_users_file_is_read_or_refused_with_a_line(name: str, password: str) -> None:
    text = f"{name}:{password}"
    if not any(password.startswith(kind) for kind in ("$argon2", "$2", "$apr1$")):
        lines = [line.strip() for line in text.splitlines()]
        if any(line and not line.startswith("#") for line in lines):
            with pytest.raises(ValueError, match=r"line \d"):
                parse_users(text)
        else:
            assert parse_users(text) == {}
