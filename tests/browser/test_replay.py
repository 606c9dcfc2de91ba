"""A replay in the browser: progress, stop, and a page that is loaded again."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.system.stack import Stack
from tests.system.traffic import ask, create, post

pytestmark = pytest.mark.system

# Each number is shown for a second only.
STORED = re.compile(r"\b[1-9]\d* messages stored in replays")


def test_replay_that_is_stopped_and_loaded_again_stores_each_message_once(
    page: Page, site: Stack
) -> None:
    create(site, "replayed", 2)
    create(site, "replays", 1)
    values = [f"message {number}" for number in range(200)]
    for value in values[:100]:
        post(site, "replayed", value)
    post(site, "replayed", "\n".join(values[100:]))
    page.goto("/console/topics/replayed?tab=messages&from=earliest")
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_role("textbox", name="To topic").fill("replays")
    page.get_by_role("textbox", name="Messages a second").fill("20")
    page.get_by_role("button", name="Replay", exact=True).press("Enter")
    expect(page.get_by_role("status")).to_contain_text(STORED)
    # The button that has the focus is never one that is disabled.
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_focused()
    stop.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Stopped")
    expect(page.get_by_role("button", name="Go on")).to_be_focused()
    page.reload()
    expect(page.get_by_role("textbox", name="To topic")).to_have_value("replays")
    page.get_by_role("textbox", name="Messages a second").fill("1000")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("status")).to_contain_text("Done. 200 messages stored in replays")
    lines = ask(site, "GET", "/console/topics/replays/export?from=earliest").body.splitlines()
    assert sorted(json.loads(line)["value"] for line in lines) == sorted(values)
