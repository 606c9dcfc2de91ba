"""`bench.growth` at a tiny scale: it fills as much as it says; each figure is there, and drawn.

What the figures are is not tested: that is for a machine without other work.
"""

from __future__ import annotations

import http.client
import json
import xml.etree.ElementTree as ET
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bench.growth import AXES, Effort, measure
from bench.growth_pages import AMOUNTS, RATIOS, draw, tables
from bench.sites import ACTIVE, Site

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
BATCH = 100 * 1024


def _read(site: Site, path: str) -> object:
    with closing(http.client.HTTPConnection("127.0.0.1", site.server.port, timeout=30)) as client:
        client.request("GET", path)
        return json.loads(client.getresponse().read())


def test_each_axis_grows_the_folder_to_the_size(tmp_path: Path) -> None:
    site = Site(tmp_path / "data")
    site.start()
    try:
        for name, have, size in (("topics", 0, 5), ("topics", 5, 7), ("groups", 0, 3)):
            AXES[name].fill(site, have, size)
        AXES["log"].fill(site, 0, 3 * BATCH)
        AXES["singles"].fill(site, 0, 5 * 1024)
        topics, groups = _read(site, "/topics"), _read(site, f"/topics/{ACTIVE}/groups")
        assert topics == {"topics": sorted([ACTIVE, *(f"t{i}" for i in range(1, 7))])}
        assert isinstance(groups, dict)
        # The message of the start, three hundred in batches, and five alone.
        held = [(group["name"], group["backlog"]) for group in groups["groups"]]
        assert held == [(f"g{i}", 305) for i in range(3)]
        site.kill()
        assert site.start() > 0
        assert len(str(_read(site, "/topics"))) == len(str(topics))
    finally:
        site.stop()


def test_a_point_has_each_figure_of_both_routers_in_a_table_and_a_picture(tmp_path: Path) -> None:
    effort = Effort(seconds=1.0, turns=1, restarts=1, oldest=1, warm=0)
    (point,) = measure([replace(AXES["topics"], sizes=(3,))], effort)
    for title in (*RATIOS, *AMOUNTS):
        assert title in point.new, title
        assert point.grown[title] > 0
        assert f"| {title} |" in tables([point])
    draw({"now": [point]}, tmp_path)
    picture = ET.fromstring((tmp_path / "growth-topics.svg").read_text())
    titles = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"1", "3", *AMOUNTS} <= titles
    assert sum("ratio" in str(title) for title in titles) == len(RATIOS)
