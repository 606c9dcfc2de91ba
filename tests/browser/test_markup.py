"""What messages, keys, headers and names carry is text on every page, whatever markup it is."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from router.web.console.shown import visible
from tests.browser.corpus import CORPUS, USERS
from tests.browser.pages import pipeline, produce, sign_in
from tests.browser.visitor import Visitor
from tests.system.stack import Stack
from tests.system.traffic import ask, create

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

TOPIC = "markup"
DEAD = "markup.dlq"
NAMESPACE = "public/default"
ALL = " ".join(CORPUS)
# Where names of users are shown.
SIGNED = (
    "/console/topics/{}",
    "/console/access",
    "/console/access/topics",
    "/console/access/topics/{}",
    "/console/about",
)
# Elements and attributes that no page of the console has.
PLANTED = (
    "script:not([src]), img[src=x], iframe, object, embed, base, math, style, meta[http-equiv],"
    " link[href*='127.0.0.1:1/'], form[action*='127.0.0.1:1/'], [onerror], [onload], [onfocus],"
    " [onmouseover], [ontoggle], [style*='fixed']"
)


@pytest.fixture(scope="module")
def stored(site: Stack) -> Stack:
    """The router with the corpus in messages, and in the names of groups where names are free."""
    create(site, TOPIC, 1)
    for text in CORPUS:
        name = quote(text, safe="")
        path = f"/admin/v2/persistent/{NAMESPACE}/{TOPIC}/subscription/{name}"
        assert ask(site, "PUT", path).status == 204
    publish(site)
    status = {"state": ALL, "error": ALL, "host": ALL, "sinks": {ALL: {"batch": 1, "rows": 1}}}
    pipeline(site, "markup", ALL, status)
    return site


def publish(site: Stack) -> None:
    """Publish a message for each text of the corpus: its value, key, and header."""
    produce(
        site,
        TOPIC,
        [{"value": one, "key": one, "properties": {"name": one, one: "value"}} for one in CORPUS],
    )


def check(page: Page) -> None:
    """Fail if markup of the corpus became part of a page."""
    page.wait_for_load_state("load")
    planted = page.locator(PLANTED)
    assert planted.count() == 0, planted.first.evaluate("(found) => found.outerHTML")


def test_messages_are_text_when_they_are_there_and_when_they_come(
    page: Page, stored: Stack
) -> None:
    page.goto(f"/console/topics/{TOPIC}?tab=messages")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    publish(stored)
    expect(page.get_by_text(f"{len(CORPUS)} received", exact=True)).to_be_visible()
    values = page.get_by_role("log").locator("article pre")
    expect(values).to_have_count(2 * len(CORPUS))
    shown = [visible(text) for text in CORPUS]
    assert values.evaluate_all("(all) => all.map((found) => found.textContent)") == shown[::-1] * 2
    check(page)
    for text in CORPUS[:3]:
        page.get_by_role("searchbox", name="Filter").fill(text)
        check(page)


@pytest.mark.parametrize(
    "path",
    [
        f"/console/topics/{TOPIC}?tab=messages&view=tree",
        f"/console/topics/{TOPIC}?tab=messages&view=hex",
        "/console/pipelines",
    ],
)
def test_what_others_wrote_is_text(page: Page, stored: Stack, path: str) -> None:
    page.goto(path)
    check(page)
    text = page.get_by_role("main").text_content() or ""
    assert "view=hex" in path or CORPUS[0] in text


def test_names_of_groups_are_text(visitor: Visitor, page: Page, stored: Stack) -> None:
    visitor.expect_status(400)  # names that the API does not take, or as a path of more segments
    visitor.expect_status(404)
    for path in (f"/console/groups?topic={TOPIC}", f"/console/topics/{TOPIC}?tab=groups"):
        page.goto(path)
        check(page)
        names = page.get_by_role("table").locator("tbody tr td:first-child")
        shown = {visible(text).strip() for text in CORPUS}
        assert shown <= {name.strip() for name in names.all_text_contents()}
    page.goto(f"/console/groups?topic={TOPIC}")
    for text in CORPUS[:3]:
        row = page.get_by_role("row").filter(has_text=text)
        row.first.get_by_role("button", name="Reset").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("status")).not_to_be_empty()
        check(page)
        page.keyboard.press("Escape")


def test_dead_letters_are_text(page: Page, stored: Stack) -> None:
    create(stored, f"{TOPIC}.dlq", 1)
    notes = [
        {"router-topic": TOPIC, "router-error": text, "router-position": text} for text in CORPUS
    ]
    messages = [
        {"value": text, "key": text, "properties": note | {text: text}}
        for text, note in zip(CORPUS, notes, strict=True)
    ]
    produce(stored, DEAD, messages)
    page.goto(f"/console/dead-letters/{TOPIC}.dlq")
    rows = page.get_by_role("table", name="Dead letters").locator("tbody tr")
    expect(rows).to_have_count(len(CORPUS))
    check(page)
    page.get_by_role("button", name="Discard all").click()
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(page.get_by_role("status")).to_have_text(f"{len(CORPUS)} done.")
    check(page)


def test_what_is_typed_comes_back_as_text(visitor: Visitor, page: Page, stored: Stack) -> None:
    visitor.expect_status(400)
    page.goto(f"/console/topics/{TOPIC}")
    page.get_by_role("textbox", name="Key", exact=True).fill(ALL)
    page.get_by_role("textbox", name="Message", exact=True).fill(ALL)
    for kind, said in (("Text", "stored"), ("JSON", "JSON"), ("Cambria", "length")):
        page.get_by_role("combobox", name="Format", exact=True).select_option(kind)
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(page.get_by_role("status")).to_contain_text(said)
        check(page)
        for details in page.locator("details").all():
            details.locator("summary").click()
            check(page)


# Where an address holds a text that may come back; {} is the text.
REFLECTING = (
    "/{}",
    "/console/{}",
    "/console/static/{}/console.js",
    "/console/topics?q={}",
    "/console/topics?page={}",
    "/console/topics?dialog={}",
    "/console/topics?format={}",
    "/console/topics/{}",
    "/console/groups?q={}",
    "/console/groups?topic={}",
    "/console/dead-letters/{}",
    f"/console/dead-letters/{DEAD}?behind={{}}",
    f"/console/topics/{TOPIC}/replay?filter={{}}",
    f"/console/topics/{TOPIC}?tab=messages&key={{}}",
    f"/console/topics/{TOPIC}?tab=messages&path={{}}",
    f"/console/topics/{TOPIC}?tab=messages&from={{}}",
    "/console/access?q={}",
    "/console/access/topics?q={}",
    "/console/access/topics/{}",
    "/console/access/keys?q={}",
    "/console/access/keys/{}",
    "/console/settings?q={}",
    "/console/signin?next={}",
    f"/console/topics/{TOPIC}/groups/{{}}",
    "/console/dead-letters/{}",
    f"/console/dead-letters/{TOPIC}?behind={{}}",
    f"/console/dead-letters/{TOPIC}?done={{}}",
    f"/console/topics/{TOPIC}/groups/g/reset?to=position&position={{}}",
    f"/console/topics/{TOPIC}?tab={{}}",
    f"/console/topics/{TOPIC}?with={{}}",
    f"/console/topics/{TOPIC}?stored={{}}",
    f"/console/topics/{TOPIC}?tab=messages&filter={{}}",
    f"/console/topics/{TOPIC}/groups/{{}}/reset",
    f"/console/topics/{TOPIC}/groups/g/reset?to={{}}",
    f"/console/topics/{TOPIC}/groups/g/reset?to=time&time={{}}",
    "/events/{}",
)


@pytest.mark.parametrize("twin", [False, True], ids=["page", "json"])
def test_what_is_in_an_address_comes_back_as_text(
    visitor: Visitor, page: Page, stored: Stack, twin: bool
) -> None:
    visitor.expect_status(400)
    visitor.expect_status(404)
    for template in REFLECTING:
        path = template.format(quote(ALL, safe=""))
        if twin:
            path += ("&" if "?" in path else "?") + "format=json"
        answer = page.goto(path)
        assert answer is not None
        kind = answer.headers["content-type"]
        assert "html" not in kind or answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        check(page)


def test_names_of_users_are_text(browser: Browser, guarded: Stack) -> None:
    for text in USERS:
        with Visitor(browser, guarded.url) as visitor:
            page = visitor.page()
            page.goto("/console/topics")
            sign_in(page, text)
            create_topic(page, f"owned-{USERS.index(text)}")
            for path in SIGNED:
                page.goto(path.format(f"owned-{USERS.index(text)}"))
                check(page)
                expect(page.get_by_text(text).first).to_be_visible()
            visitor.check()


def create_topic(page: Page, name: str) -> None:
    page.get_by_role("button", name="Create topic").click()
    page.get_by_role("textbox", name="Name", exact=True).fill(name)
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)
