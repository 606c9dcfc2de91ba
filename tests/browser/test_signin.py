"""Signing in with a browser: what the session lets the user do, and what it lets other pages do."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources

import pytest
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.browser.visitor import Visitor
from tests.system.stack import Stack
from tests.system.traffic import ask
from tests.unit.web.applications import CHEAP, header

pytestmark = [pytest.mark.system, pytest.mark.slow]

PASSWORD = "correct horse"
AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# A page that does to the router what a page can do without its user.
ATTACK = """<!doctype html><title>Other</title>
<a href="{url}/console/topics?q=linked">A link</a>
<form method="post" action="{url}/console/topics" target="_self">
<input name="name" value="{name}"><button>Send</button></form>
<script>
window.done = Promise.allSettled([
  fetch("{url}/console/topics", {{ method: "POST", credentials: "include", mode: "no-cors",
    body: new URLSearchParams({{ name: "{name}" }}) }}),
  fetch("{url}/console/topics?format=json", {{ credentials: "include" }}).then((a) => a.text())
    .then((text) => {{ document.title = `read ${{text}}`; }}),
  fetch("{url}/console/signout", {{ method: "POST", credentials: "include", mode: "no-cors" }}),
]);
</script>"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router with the user anna."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "users").write_text(f"anna:{CHEAP.hash(PASSWORD)}\n")
    stack = Stack(folder, "--workers", "2", auth_users=str(folder / "users"))
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture
def visitor(browser: Browser, guarded: Stack) -> Iterator[Visitor]:
    """A new user of the console, in whose pages nothing may go wrong."""
    with Visitor(browser, guarded.url) as made:
        yield made
        made.check()


def sign_in(page: Page, password: str = PASSWORD) -> None:
    page.get_by_role("textbox", name="User").fill("anna")
    page.get_by_role("textbox", name="Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def topics(guarded: Stack) -> str:
    anna = {"Authorization": header("anna", PASSWORD)}
    return ask(guarded, "GET", "/topics", b"", anna).body.decode()


def test_user_signs_in_works_and_signs_out(visitor: Visitor, guarded: Stack) -> None:
    visitor.expect_status(401)
    page = visitor.page()
    page.goto("/console/topics?q=ord")
    page.evaluate(AXE)
    assert page.evaluate("async () => (await axe.run()).violations.map((v) => v.id)") == []
    sign_in(page, "wrong")
    expect(page.get_by_role("alert")).to_contain_text("The name or the password is wrong.")
    sign_in(page)
    expect(page).to_have_url(f"{guarded.url}/console/topics?q=ord")
    expect(page.get_by_role("banner")).to_contain_text("Signed in as anna")
    page.get_by_role("button", name="Create topic").click()
    page.get_by_role("textbox", name="Name").fill("orders")
    page.get_by_role("button", name="Create", exact=True).click()
    tail = visitor.page()
    tail.goto("/console/topics/orders?tab=messages")
    expect(tail.get_by_text("Live", exact=True)).to_be_visible()
    page.get_by_role("textbox", name="Message").fill("by anna")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status")).to_contain_text("1 message stored")
    log = tail.get_by_role("log", name="Live messages")
    expect(log.get_by_role("article").get_by_text("by anna")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{guarded.url}/console/signin")
    # A page that is still open notices it with its next request: ours, or one that it makes itself.
    with suppress(PlaywrightTimeoutError):
        tail.get_by_role("tab", name="Publish").click(timeout=5_000)
    signin = f"{guarded.url}/console/signin?next=%2Fconsole%2Ftopics%2Forders%3Ftab%3D"
    expect(tail).to_have_url(re.compile(re.escape(signin) + "(publish|messages)"))


@pytest.fixture
def other(guarded: Stack) -> Iterator[http.server.ThreadingHTTPServer]:
    """A server of pages that attack the router."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = ATTACK.format(url=guarded.url, name=self.path.strip("/")).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_pages_of_other_origins_use_no_session(
    browser: Browser, guarded: Stack, other: http.server.ThreadingHTTPServer, host: str
) -> None:
    """Another port is of the same site, so that its requests have the cookie; a name is not."""
    with Visitor(browser, guarded.url) as visitor:
        page = visitor.page()
        page.goto("/console/signin")
        sign_in(page)
        expect(page.get_by_role("banner")).to_contain_text("Signed in as anna")
        attack = visitor.page()
        attack.goto(f"http://{host}:{other.server_port}/taken-{host}")
        attack.evaluate("window.done")
        assert attack.title() == "Other"
        attack.get_by_role("button", name="Send").click()
        expect(attack.get_by_role("heading", level=1)).to_have_text("Forbidden")
        assert "taken" not in topics(guarded)
        page.reload()
        expect(page.get_by_role("banner")).to_contain_text("Signed in as anna")
        # A link opens the page all the same, for the user who is signed in.
        attack.goto(f"http://{host}:{other.server_port}/taken")
        attack.get_by_role("link", name="A link").click()
        expect(attack).to_have_url(f"{guarded.url}/console/topics?q=linked")
        expect(attack.get_by_role("banner")).to_contain_text("Signed in as anna")
