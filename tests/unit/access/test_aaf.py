"""Permissions as AAF has them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from router.access import aaf
from router.access.permissions import Permissions, Right
from router.errors import SettingError

FILE = """
# user   permission
pubber   org.onap.dmaap.mr.topic|:topic.org.onap.dmaap.mr.events|pub
subber   org.onap.dmaap.mr.topic|:topic.org.onap.dmaap.mr.ev*|sub   # a comment
viewer   org.onap.dmaap.mr.topic|*|view
shipped  org.onap.dmaap.mr.topic|:topic.*|pub
sdc      org.onap.sdc.topic|:topic.*|*
short    org.onap.topic|:topic.x|pub
maker    org.onap.sdc|create
breaker  org.onap.sdc|destroy
both     org.onap.sdc|create
both     org.onap.sdc|destroy
written  org.onap.dmaap.mr.topicFactory|:org.onap.dmaap.mr.topic:org.onap.sdc|create
root     *|*|*
lead     org.onap.dmaap.mr.topicFactory|:org.onap.dmaap.mr.topic:org.onap.sdc|*
lead     org.onap.sdc|*
chief    *|create
chief    *|destroy
*        org.onap.open.topic|:topic.org.onap.open.*|sub
"""
EVENTS, SDC = "org.onap.dmaap.mr.events", "org.onap.sdc.distribution"
TOPICS = [EVENTS, SDC, "org.onap.open.t", "x", "orders"]


@pytest.fixture
def permissions(tmp_path: Path) -> Permissions:
    file = tmp_path / "aaf"
    file.write_text(FILE)
    return Permissions(file, time.monotonic, aaf.parse)


def granted(permissions: Permissions, user: str, right: Right) -> list[str]:
    return [topic for topic in TOPICS if permissions.allows(user, topic, right)]


@pytest.mark.parametrize(
    ("user", "right", "topics"),
    [
        ("pubber", Right.PUBLISH, [EVENTS]),
        ("pubber", Right.SUBSCRIBE, ["org.onap.open.t"]),
        ("pubber", Right.VIEW, [EVENTS, "org.onap.open.t"]),
        ("pubber", Right.MANAGE, []),
        ("subber", Right.SUBSCRIBE, [EVENTS, "org.onap.open.t"]),
        ("viewer", Right.VIEW, [EVENTS, "org.onap.open.t", "x", "orders"]),
        ("viewer", Right.PUBLISH, []),
        ("shipped", Right.PUBLISH, [EVENTS, "x", "orders"]),
        ("sdc", Right.PUBLISH, [SDC]),
        ("sdc", Right.MANAGE, [SDC]),
        ("short", Right.PUBLISH, ["x"]),
        ("maker", Right.CREATE, [SDC]),
        ("maker", Right.DELETE, []),
        ("breaker", Right.DELETE, [SDC]),
        ("both", Right.MANAGE, [SDC]),
        ("maker", Right.MANAGE, []),
        ("written", Right.CREATE, [SDC]),
        ("lead", Right.MANAGE, [SDC]),
        ("lead", Right.PUBLISH, []),
        ("lead", Right.SUBSCRIBE, ["org.onap.open.t"]),
        ("root", Right.MANAGE, TOPICS),
        ("chief", Right.MANAGE, TOPICS),
        ("chief", Right.PUBLISH, []),
        ("nobody", Right.SUBSCRIBE, ["org.onap.open.t"]),
    ],
)
def test_permission_grants_what_aaf_means_by_it(
    permissions: Permissions, user: str, right: Right, topics: list[str]
) -> None:
    assert granted(permissions, user, right) == topics


def test_administrators_may_create_and_destroy_everywhere(permissions: Permissions) -> None:
    users = {line.split()[0] for line in FILE.splitlines() if line and line[0] != "#"}
    assert {user for user in users if permissions.allows_all(user, Right.MANAGE)} == {
        "root",
        "chief",
    }


def test_users_of_a_topic_are_named(permissions: Permissions) -> None:
    assert permissions.users(SDC, Right.CREATE) == [
        "both", "chief", "lead", "maker", "root", "sdc", "written",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    ["a", "a b", "a b c", "a x|y", "a x|pub", "a x.topicFactory|:x.topic:n|sub",
     "a x.topic|:topic.t|eat", "a x.topic|topic.t|pub",
     "a x.queue|:topic.t|pub", "a x.topic||pub", "a x|y|z|pub", "a x.topic|:topic.t(|pub"],
)  # fmt: skip
def test_line_that_cannot_be_read_stops_the_start(tmp_path: Path, line: str) -> None:
    (tmp_path / "aaf").write_text(f"# first\n{line}\n")
    with pytest.raises(SettingError, match="line 2"):
        Permissions(tmp_path / "aaf", time.monotonic, aaf.parse)
