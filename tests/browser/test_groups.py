"""Groups and dead letters in a browser: resets with a preview, requeueing, charts that go on."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.pages import ANYBODY, Routers, bury
from tests.system.traffic import create, poll, post

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_a_group_goes_on_at_a_position_that_its_page_shows(
    browser: Browser, routers: Routers
) -> None:
    site = routers.site
    create(site, "positions", 1)
    for value in ("one", "two", "three"):
        post(site, "positions", value)
    poll(site, "positions/readers/1", 3, "from=earliest")
    with routers.visitor(browser, ANYBODY) as visitor:
        page = visitor.page()
        page.goto("/console/topics/positions/groups/readers")
        row = page.get_by_role("table", name="Partitions").get_by_role("row").last
        first = row.get_by_role("cell").nth(3).inner_text()
        page.get_by_role("button", name="Reset", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("combobox", name="To").select_option("position")
        dialog.get_by_role("textbox", name="Position").fill(first)
        expect(dialog.get_by_role("status")).to_have_text("Lag now: 0. Lag after the reset: 3.")
        expect(dialog.get_by_text(f"--to {first}")).to_have_count(1)
        dialog.get_by_role("button", name="Reset position").click()
        expect(row.get_by_role("cell").nth(1)).to_have_text("3")
    assert json.loads(poll(site, "positions/readers/1").body) == ["one", "two", "three"]


def test_letters_are_requeued_with_progress_and_what_cannot_be_stays(
    browser: Browser, routers: Routers
) -> None:
    site = routers.site
    create(site, "mended", 1)
    create(site, "mended.dlq", 1)
    bury(site, "mended.dlq", "mended", *(f"reason {n}" for n in range(250)))
    bury(site, "mended.dlq", "absent-topic", "<b>hopeless</b>")
    with routers.visitor(browser, ANYBODY) as visitor:
        page = visitor.page()
        page.goto("/console/groups")
        page.get_by_role("link", name="Dead letters").click()
        page.get_by_role("link", name="mended.dlq").click()
        page.get_by_role("checkbox", name=re.compile("^Letter ")).first.check()
        page.get_by_role("button", name="Discard selected").click()
        status = page.get_by_role("status")
        expect(status).to_have_text("1 done.")
        page.get_by_role("button", name="Requeue all").click()
        expect(status).to_have_text("249 done. 1 failed and still wait.")
        table = page.get_by_role("table", name="Dead letters")
        expect(table.get_by_role("row")).to_have_count(2)
        expect(table).to_contain_text("<b>hopeless</b>")
        expect(page.get_by_text("There is no topic absent-topic.")).to_be_visible()
    assert len(json.loads(poll(site, "mended/readers/1", 0, "from=earliest&limit=999").body)) == 249


def test_charts_go_on_while_they_are_looked_at(browser: Browser, routers: Routers) -> None:
    site = routers.site
    create(site, "charted", 1)
    post(site, "charted", "one")
    poll(site, "charted/readers/1", 1, "from=earliest")
    with routers.visitor(browser, ANYBODY) as visitor:
        page = visitor.page()
        page.goto("/console/topics/charted/groups/readers")
        lag = page.get_by_role("img", name=re.compile("^Lag: 0, from 0 to 0"))
        expect(lag).to_be_visible()
        post(site, "charted", "two\nthree")
        expect(page.get_by_role("img", name=re.compile("^Lag: 2, from 0 to 2"))).to_be_visible()
        line = page.locator("polyline").first.get_attribute("points") or ""
        assert len(line.split()) >= 2
