"""Pages of other origins: none of their forms, links and fetches changes or consumes anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Response, expect

from router.app import create_app
from router.settings import load
from tests.browser.other_site import OtherSite
from tests.browser.visitor import PATIENCE_MS
from tests.ports import free_port
from tests.servers.certificates import Authority, Certificate
from tests.system.stack import Stack
from tests.system.traffic import ask
from tests.unit.web.applications import CHEAP, header
from tests.unit.web.routes import VALUES, requests

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

GROUP = "/admin/v2/persistent/public/default/t/subscription/g"
EARLIEST = b'{"ledgerId": -1, "entryId": -1}'
ADMINISTRATION = re.compile(r"`(GET|PUT|POST|DELETE) (/(?:admin|lookup)/v2/[^`]*)`")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
DOCS = Path(__file__).parent.parent.parent / "docs"
JSON = {"Content-Type": "application/json"}
# What pages of other sites may open by a link, and by nothing else.
OPEN = ("/", "/console", "/docs")
# What a browser keeps as a file and does not open.
DOWNLOADS = ("/export", "/stream", "/metrics", "/openapi.json")
LASTING = ("name", "partitions", "messages", "bytes", "groups", "group", "topic", "lag", "members")
# What tells of every change: topics, their messages, groups and what they have not had, keys.
STATE = (
    "/console/topics?format=json",
    "/console/groups?format=json",
    "/topics/listAll",
    "/topics/t",
    "/apiKeys",
    "/admin/v2/tenants",
    "/admin/v2/namespaces/public",
    "/admin/v2/namespaces/public/default",
    "/admin/v2/persistent/public/default/t/subscriptions",
)


@dataclass(frozen=True, slots=True)
class Prey:
    """A router with HTTP and HTTPS, with messages that a group has not had."""

    stack: Stack
    tls_port: int
    certificate: Certificate
    credentials: dict[str, str]

    def url(self, scheme: str) -> str:
        """Return where it is."""
        port = self.tls_port if scheme == "https" else self.stack.port
        return f"{scheme}://127.0.0.1:{port}"

    def state(self) -> dict[str, Any]:
        """Return all that a request could have changed."""
        answers = {path: ask(self.stack, "GET", path, headers=self.credentials) for path in STATE}
        # What the user may not see is refused with another id each time.
        return {
            path: lasting(answer.json) if answer.status == 200 else answer.status
            for path, answer in answers.items()
        }


def lasting(found: Any) -> Any:
    """Return what the router tells, without rates, which change by themselves."""
    if isinstance(found, dict) and "commands" in found:
        return [{name: row.get(name) for name in LASTING} for row in rows(found)]
    return found


def rows(page: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the page of topics or groups."""
    kept: list[dict[str, Any]] = page["topics"] if "topics" in page else page["groups"]
    return kept


@pytest.fixture(scope="module", params=["open", "users"])
def prey(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prey]:
    """A router that is open to all of this machine, and one with a user."""
    folder = tmp_path_factory.mktemp("prey")
    pair, tls_port = Authority(folder).issue("server"), free_port()
    flags = ["--cert", str(pair.cert), "--key", str(pair.key), "--tls-port", str(tls_port)]
    settings, credentials = {}, {}
    if request.param == "users":
        (folder / "users").write_text(f"anna:{CHEAP.hash('secret')}\n")
        # An administrator, for whom a foreign page could do the most.
        (folder / "permissions").write_text("anna * publish subscribe manage\n")
        settings = {
            "auth_users": str(folder / "users"),
            "auth_permissions": str(folder / "permissions"),
            "auth_attempts_per_minute": "0",
        }
        credentials = {"Authorization": header("anna", "secret")}
    stack = Stack(folder, *flags, **settings)
    stack.start()
    body = b'{"topicName": "t", "partitionCount": 1}'
    assert ask(stack, "POST", "/topics/create", body, JSON | credentials).status == 200
    assert ask(stack, "PUT", GROUP, EARLIEST, JSON | credentials).status == 204
    for text in (b"first", b"second"):
        assert ask(stack, "POST", "/events/t", text, credentials).status == 200
    yield Prey(stack, tls_port, pair, credentials)
    stack.stop()


@pytest.fixture(scope="module")
def routes() -> list[tuple[str, str]]:
    """Method and path of every route of every dialect."""
    app = create_app(load(None, {}, {"backend.url": "memory"}))
    found = set(requests(app))
    app.extensions["router.close"]()
    # On this store all of Pulsar's administration is one route; a test keeps its page complete.
    for method, path in ADMINISTRATION.findall((DOCS / "pulsar-admin.md").read_text("utf-8")):
        found.add((method, PLACEHOLDER.sub(lambda name: VALUES.get(name[1], "x"), path)))
    assert len(found) > 200
    return sorted(found)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(ignore_https_errors=True)
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


# The attacker's scheme and name, and how it calls the router: a page of another site,
# and one of the same site on another port. The first calls all routes, and all share them again.
ATTACKS = [
    ("http", "localhost", "http"),
    ("http", "127.0.0.1", "http"),
    ("https", "127.0.0.1", "https"),
    ("http", "localhost", "https"),
]


@pytest.mark.parametrize("number", range(len(ATTACKS)))
def test_page_of_another_origin_changes_and_consumes_nothing(
    context: BrowserContext, prey: Prey, routes: list[tuple[str, str]], number: int
) -> None:
    scheme, host, to = ATTACKS[number]
    whole = number == 0 and not prey.credentials
    share = routes if whole else routes[number :: len(ATTACKS)]
    called = [(method, prey.url(to) + path) for method, path in share]
    if prey.credentials:
        sign_in(context, prey.url(to))
    before, answers = prey.state(), Answers()
    with OtherSite(host, prey.certificate if scheme == "https" else None) as attacker:
        page = context.new_page()
        page.goto(attacker.url)
        context.on("response", answers.note)
        attacker.attack(page, called)
        page.close()
    foreign = [found for found in answers.found if found[2].startswith(prey.url(to))]
    assert {found for found in foreign if found[0] != 403} == set()
    # Other methods are asked for first, by a preflight, and then not sent.
    sent = {(method, url.partition("?")[0]) for _, method, url in foreign}
    assert {call for call in called if call[0] in {"GET", "POST"}} - sent == set()
    assert prey.state() == before


class Answers:
    """What came back to a browser: status, method and address; preflights apart."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []

    def note(self, answer: Response) -> None:
        """Take an answer."""
        if answer.request.method != "OPTIONS":
            self.found.append((answer.status, answer.request.method, answer.url))


def test_link_of_another_site_opens_pages_and_does_nothing(
    context: BrowserContext, prey: Prey, routes: list[tuple[str, str]]
) -> None:
    """A user clicks, so that the browser says it was by hand, as for a bookmark."""
    target = prey.url("http")
    host = "127.0.0.1" if prey.credentials else "localhost"
    if prey.credentials:
        sign_in(context, target)
    before = prey.state()
    page = context.new_page()
    pages = [path for method, path in routes if method == "GET" and not path.endswith(DOWNLOADS)]
    with OtherSite(host) as attacker:
        for path in pages[:: len(ATTACKS)]:
            page.goto(f"{attacker.url}/?link={quote(target + path, safe='')}")
            with page.expect_navigation() as got:
                page.get_by_role("link").click()
            open_to_links = path in OPEN or path.startswith(tuple(f"{o}/" for o in OPEN[1:]))
            assert (got.value.status == 403) is not open_to_links, path
    assert prey.state() == before


def test_everything_is_there_after_all_attacks(prey: Prey) -> None:
    headers = prey.credentials
    answer = ask(prey.stack, "GET", "/events/t/g/c?timeout=5000", headers=headers)
    assert answer.json == ["first", "second"]


def sign_in(context: BrowserContext, target: str) -> None:
    """Begin a session, whose cookie the browser then has."""
    page = context.new_page()
    page.goto(f"{target}/console/")
    page.get_by_role("textbox", name="User").fill("anna")
    page.get_by_role("textbox", name="Password").fill("secret")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.close()
