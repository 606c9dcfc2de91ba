"""The table of messages and one message in full, as people see, open and send them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from router.model import REPLAYED, UNDECODED
from router.services.dead_letters.dead_letter import NOTES
from tests.browser.pages import BINARY, produce
from tests.browser.test_accessible import AXE, THEMES, VIOLATIONS
from tests.browser.visitor import Visitor
from tests.system.stack import Stack
from tests.system.traffic import ask, create, post

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "table"
# Where the first message begins at most, and the height that it has at most.
TOPS = {(1280, 800): (260, 36), (390, 844): (420, 54)}


@pytest.fixture(scope="module")
def filled(site: Stack) -> Stack:
    """The router with a topic of each kind of message."""
    create(site, TOPIC, 1)
    value = json.dumps({"id": 7, "customer": {"name": "anna"}, "paid": True})
    produce(site, TOPIC, [{"value": value, "key": "k1", "properties": {"type": "order"}}])
    post(site, TOPIC, "line\n" * 40)
    produce(site, TOPIC, [{"value": "x" * 30_000, "key": "long"}])
    assert ask(site, "POST", f"/events/{TOPIC}", b"\xff\x00", BINARY).status == 200
    return site


def open_table(page: Page, topic: str = TOPIC) -> None:
    page.goto(f"/console/topics/{topic}?tab=messages")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()


def test_table_is_dense_and_high_on_the_page(page: Page, filled: Stack) -> None:
    for (width, height), (top, line_height) in TOPS.items():
        page.set_viewport_size({"width": width, "height": height})
        open_table(page)
        box = page.get_by_role("article").first.bounding_box()
        assert box is not None
        assert box["height"] <= line_height
        assert box["y"] < top


def test_value_has_the_width_of_a_narrow_screen(page: Page, filled: Stack) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_table(page)
    line = page.get_by_role("article").filter(has_text="anna")
    value, time = (line.locator(part).bounding_box() for part in ("pre", "time"))
    assert value is not None
    assert time is not None
    assert value["width"] > 300
    assert value["y"] >= time["y"] + time["height"]


def test_message_that_was_sent_again_is_left_by_keyboard(page: Page, site: Stack) -> None:
    """The button that is disabled while it sends has the focus afterwards."""
    create(site, "left-by-keyboard", 1)
    post(site, "left-by-keyboard", "a")
    open_table(page, "left-by-keyboard")
    page.get_by_role("article").first.click()
    pane = page.get_by_role("complementary", name="Message")
    again = pane.get_by_role("button", name="Send again")
    again.click()
    expect(pane.get_by_role("status")).to_have_text("1 message sent.")
    expect(again).to_be_focused()
    page.keyboard.press("Escape")
    expect(pane).to_be_hidden()


def test_button_that_copied_says_so(page: Page, filled: Stack) -> None:
    page.context.grant_permissions(["clipboard-write"])
    page.clock.install()
    open_table(page)
    page.get_by_role("article").first.click()
    pane = page.get_by_role("complementary", name="Message")
    copy = pane.get_by_role("button", name="Copy value")
    page.clock.pause_at(page.evaluate("Date.now()") + 1)
    copy.click()
    # By its name, which is what a screen reader says.
    expect(pane.get_by_role("button", name="Copied")).to_be_visible()
    page.clock.run_for(2_000)
    expect(copy).to_be_visible()


def test_newest_message_is_first_and_followed(page: Page, site: Stack) -> None:
    create(site, "followed", 1)
    post(site, "followed", "\n".join(map(str, range(60))))
    open_table(page, "followed")
    first = page.get_by_role("article").first
    expect(first).to_contain_text("59")
    post(site, "followed", "newest")
    expect(first).to_contain_text("newest")
    log = page.get_by_role("log", name="Live messages")
    log.evaluate("(found) => { found.scrollTop = 300; }")
    page.wait_for_function("document.getElementById('log').scrollTop > 20")
    post(site, "followed", "a\nb\nc")
    back = page.get_by_role("button", name="3 new messages")
    expect(back).to_be_visible()
    expect(first).to_contain_text("newest")
    back.click()
    expect(first).to_contain_text("c")
    expect(back).to_be_hidden()
    assert log.evaluate("(found) => found.scrollTop") == 0


def test_json_of_a_line_has_colours(page: Page, filled: Stack) -> None:
    page.goto(f"/console/topics/{TOPIC}?tab=messages&key=k1")
    line = page.get_by_role("article").locator("pre")
    expect(line.locator(".name")).to_have_text(['"id"', '"customer"', '"name"', '"paid"'])
    expect(line.locator(".number")).to_have_text("7")
    expect(line.locator(".word")).to_have_text("true")


def test_columns_and_zone_are_chosen_and_kept(page: Page, filled: Stack) -> None:
    open_table(page)
    line = page.get_by_role("article").last
    expect(line.get_by_text("type: order")).to_be_hidden()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Headers", exact=True).check()
    page.get_by_label("Size", exact=True).uncheck()
    page.get_by_role("button", name="Local times").click()
    for _ in range(2):
        expect(line.get_by_text("type: order")).to_be_visible()
        expect(line.locator(".c-size")).to_be_hidden()
        expect(line.locator("time")).not_to_contain_text("Z")
        open_table(page)


def test_from_takes_partition_and_offset(page: Page, filled: Stack) -> None:
    page.goto(f"/console/topics/{TOPIC}?tab=messages&from=0:41")
    expect(page.get_by_role("article").first).to_contain_text("xxx")
    page.goto(f"/console/topics/{TOPIC}?tab=messages&from=0:39&before=0:41")
    expect(page.get_by_role("article")).to_have_count(2)
    expect(page.get_by_role("article").first).to_contain_text("line")
    assert re.fullmatch(
        r"[0-9]+:[0-9]+:0(:[0-9]+)?", page.get_by_label("From", exact=True).input_value()
    )


def test_zone_is_chosen_for_all_pages(page: Page, filled: Stack) -> None:
    page.goto("/console/audit")
    time = page.locator("main time").first
    expect(time).to_contain_text("Z")
    page.get_by_role("button", name="Local times").click()
    expect(time).not_to_contain_text("Z")
    page.goto(f"/console/topics/{TOPIC}?tab=messages")
    expect(page.get_by_role("article").first.locator("time")).not_to_contain_text("Z")


def test_line_opens_beside_the_table_by_mouse_and_keys(page: Page, filled: Stack) -> None:
    open_table(page)
    pane = page.get_by_role("complementary", name="Message")
    page.get_by_role("article").first.click()
    expect(pane.get_by_role("region", name="Value")).to_contain_text("ff 00")
    page.keyboard.press("Escape")
    expect(pane).to_be_hidden()
    expect(page.get_by_role("article").first.get_by_role("link")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(pane.get_by_role("region", name="Value")).to_have_text("x" * 30_000)
    pane.get_by_role("link", name="Hex").click()
    expect(pane.get_by_role("region", name="Value")).to_contain_text("00000000  78 78")
    pane.get_by_role("button", name="Close").click()
    expect(pane).to_be_hidden()


def test_json_folds_and_headers_are_a_table(page: Page, filled: Stack) -> None:
    open_table(page)
    page.get_by_role("article").filter(has_text="k1").click()
    value = page.get_by_role("region", name="Value")
    expect(value.get_by_text('"anna"')).to_be_visible()
    value.locator("summary").filter(has_text="customer").click()
    expect(value.get_by_text('"anna"')).to_be_hidden()
    row = page.get_by_role("table", name="Headers").get_by_role("row", name="type")
    expect(row).to_contain_text("order")


def test_message_is_edited_and_sent_without_leaving_the_table(page: Page, site: Stack) -> None:
    create(site, "edited", 1)
    produce(site, "edited", [{"value": '{"id": 1}', "key": "k", "properties": {"a": "1"}}])
    open_table(page, "edited")
    lines = page.get_by_role("article")
    lines.first.click()
    pane = page.get_by_role("complementary", name="Message")
    pane.get_by_role("button", name="Send again").click()
    expect(lines).to_have_count(2)
    expect(pane.get_by_role("status")).to_have_text("1 message sent.")
    pane.get_by_text("Edit and send").click()
    pane.get_by_role("textbox", name="Value").fill('{"id": 2}')
    pane.get_by_role("textbox", name="Headers").fill("b: 2")
    pane.get_by_role("button", name="Send", exact=True).click()
    expect(lines).to_have_count(3)
    expect(lines.first).to_contain_text('{"id": 2}')
    lines.first.click()
    expect(page.get_by_role("table", name="Headers")).to_have_text("b2")


def test_live_line_has_the_headers_of_its_publisher_as_the_page_has_them(
    page: Page, site: Stack
) -> None:
    create(site, "noted", 1)
    page.goto("/console/topics/noted?tab=messages")
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    own = dict.fromkeys([*NOTES, UNDECODED, REPLAYED], "x")
    produce(site, "noted", [{"value": "a", "properties": {**own, "a": "1", "router-id": "2"}}])
    line = page.get_by_role("article")
    shown = {"a: 1", "router-id: 2"}
    expect(line).to_have_count(1)
    headers = line.locator(".c-headers span")
    assert set(headers.all_text_contents()) == shown
    page.reload()
    expect(line).to_have_count(1)
    assert set(headers.all_text_contents()) == shown


def test_message_and_its_dead_letter_lead_to_each_other(page: Page, site: Stack) -> None:
    for topic in ("told", "told.dlq"):
        create(site, topic, 1)
    post(site, "told", "a")
    listed = page.request.get("/console/topics/told?tab=messages&format=json").json()
    ledger, entry, partition = listed["messages"][0]["place"].split(":")[:3]
    notes = {
        "router-topic": "told",
        "router-partition": partition,
        "router-position": f"{ledger}:{entry}",
        "router-error": "no JSON",
    }
    produce(site, "told.dlq", [{"value": "a", "properties": notes}])
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/console/topics/told/messages/{listed['messages'][0]['id']}")
    story = page.get_by_role("listitem").filter(has_text="Sent to dead letters")
    expect(story).to_contain_text("waiting")
    check(page)
    story.get_by_role("link").click()
    expect(page.get_by_role("table", name="Delivery")).to_contain_text("no JSON")
    check(page)
    page.get_by_role("link", name=f"told, {ledger}:{entry}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("told")
    expect(story).to_be_visible()


@pytest.fixture
def plain(browser: Browser, filled: Stack) -> Iterator[Page]:
    """A page of a browser that runs no script."""
    with Visitor(browser, filled.url, java_script_enabled=False) as visitor:
        yield visitor.page()
        visitor.check()


def test_message_is_a_page_without_script(plain: Page) -> None:
    plain.goto(f"/console/topics/{TOPIC}?tab=messages&key=k1")
    plain.get_by_role("article").get_by_role("link").click()
    expect(plain.get_by_role("region", name="Value")).to_contain_text('"anna"')
    plain.get_by_role("link", name="Base64").click()
    expect(plain.get_by_role("region", name="Value")).to_contain_text("eyJ")
    with plain.expect_download() as started:
        plain.get_by_role("link", name="Download").click()
    assert json.loads(started.value.path().read_bytes())["id"] == 7
    plain.get_by_role("button", name="Send again").click()
    expect(plain.get_by_role("status")).to_have_text("1 message sent.")


def test_axe_finds_nothing_in_a_message_and_it_fits_a_narrow_screen(
    page: Page, filled: Stack
) -> None:
    open_table(page)
    page.get_by_role("article").filter(has_text="k1").first.click()
    expect(page.get_by_role("region", name="Value")).to_be_visible()
    check(page)
    page.keyboard.press("Escape")
    href = page.get_by_role("article").first.get_by_role("link").get_attribute("href")
    page.goto(str(href))
    expect(page.get_by_role("heading", level=1)).to_have_text(TOPIC)
    check(page)


def check(page: Page) -> None:
    """Fail if axe finds something in either theme, or a narrow screen scrolls sideways."""
    page.evaluate(AXE)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        found = page.evaluate(VIOLATIONS)
        assert not found, (theme, found)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 800})


LINES = 50_000


@pytest.fixture(scope="module")
def long(site: Stack) -> Stack:
    """The router with a topic that takes more than one request to search."""
    create(site, "long", 1)
    post(site, "long", "needle 1")
    for first in range(0, LINES, 10_000):
        post(site, "long", "\n".join(f"hay {n}" for n in range(first, first + 10_000)))
    return site


def test_search_goes_on_by_itself_to_the_first_message(page: Page, long: Stack) -> None:
    open_table(page, "long")
    page.get_by_role("searchbox", name="Filter").fill("needle")
    page.get_by_role("button", name="Apply").click()
    note = page.get_by_role("status").filter(has_text="Checked")
    expect(note).to_have_text("Checked all 50,001, 1 found.")
    expect(page.get_by_role("article")).to_contain_text("needle 1")


def test_search_is_stopped_and_continued(page: Page, long: Stack) -> None:
    held: list[Route] = []
    further = "**/topics/long?*before=*"

    def hold(route: Route) -> None:
        held.append(route)

    page.route(further, hold)
    with page.expect_request(further):
        page.goto("/console/topics/long?tab=messages&filter=nowhere")
    page.get_by_role("button", name="Stop").click()
    held[0].continue_()
    note = page.get_by_role("status").filter(has_text="Checked")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    expect(note).to_contain_text("of 50,001, 0 found")
    page.unroute_all()
    page.get_by_role("button", name="Continue").click()
    expect(note).to_have_text("Checked all 50,001, no message matches.")
    expect(page.get_by_role("log")).to_contain_text("No message matches, of all 50,001.")


def test_from_takes_when_the_page_was_opened(page: Page, site: Stack) -> None:
    create(site, "opened", 1)
    post(site, "opened", "before")
    page.goto("/console/topics/opened?tab=messages")
    expect(page.get_by_role("article")).to_have_count(1)
    since = page.locator("#starts option").filter(has_text="since I opened this page")
    post(site, "opened", "since")
    expect(page.get_by_role("article")).to_have_count(2)
    page.get_by_text("More filters").click()
    page.get_by_role("combobox", name="From", exact=True).fill(str(since.get_attribute("value")))
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("article")).to_have_count(1)
    expect(page.get_by_role("article")).to_contain_text("since")


def test_mistake_stays_at_its_field(visitor: Visitor, page: Page, filled: Stack) -> None:
    visitor.expect_status(400)
    open_table(page)
    box = page.get_by_role("searchbox", name="Filter")
    box.fill("key:k1 and (")
    expect(box).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Expected a text, key:, header: or a path")).to_be_visible()
    expect(box).to_have_value("key:k1 and (")
    box.fill("key:k1 and $.customer.name = anna")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("article").first).to_contain_text('"anna"')


@pytest.mark.parametrize(
    ("path", "label", "button"),
    [
        (f"/console/topics/{TOPIC}?tab=settings", "Retention by size", "Preview"),
        (f"/console/topics/{TOPIC}?tab=settings", "Write its name", "Delete topic"),
        (f"/console/streams/{TOPIC}", "Write the stream's name", "Purge stream"),
    ],
)
def test_mistake_in_a_form_is_said_there(
    visitor: Visitor, page: Page, filled: Stack, path: str, label: str, button: str
) -> None:
    visitor.expect_status(400)
    page.goto(path)
    field = page.get_by_role("textbox", name=label)
    field.fill("no such thing")
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("alert")).to_contain_text(f"{field.get_attribute('name')}:")
    expect(field).to_have_value("no such thing")
    expect(field).to_have_attribute("aria-invalid", "true")


def test_several_topics_are_watched_in_one_table(page: Page, site: Stack) -> None:
    for topic in ("watched.a", "watched.b"):
        create(site, topic, 1)
        post(site, topic, f"old {topic}")
    page.goto("/console/topics")
    page.get_by_role("link", name="Watch several").click()
    page.get_by_role("textbox", name="Topics").fill("watched.*")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    lines = page.get_by_role("article")
    expect(lines).to_have_count(2)
    for topic in ("watched.a", "watched.b"):
        post(site, topic, f"new {topic}")
        expect(lines.first).to_contain_text(f"new {topic}")
        expect(lines.first.get_by_role("link", name=topic)).to_be_visible()
    lines.nth(1).click()
    value = page.get_by_role("region", name="Value")
    expect(value).to_have_text("new watched.a")
    check(page)
