"""The table view over HTTP: the newest value of each key of a compacted topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.conftest import open_any
from tests.contract.test_jetstream import Site


@pytest.fixture(scope="module", params=["embedded"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with ExitStack() as stack:
        found = Site(open_any(request, tmp_path_factory.mktemp("data"), stack))
        stack.callback(found.app.extensions["router.close"])
        yield found


def compacted(site: Site, **fields: object) -> str:
    """Make a compacted topic; return its name."""
    name = site.opened.new_name().local
    new = {"topicName": name, "cleanupPolicy": "compact", **fields}
    assert site.client.post("/topics/create", json=new).status_code == 200
    return name


def put(site: Site, topic: str, key: str, value: str | bytes) -> None:
    answer = site.client.post(
        f"/events/{topic}?partitionKey={quote(key, safe='')}",
        data=value,
        content_type="application/octet-stream" if isinstance(value, bytes) else "text/plain",
    )
    assert answer.status_code == 200, answer.text


def latest(site: Site, path: str) -> Any:
    answer = site.client.get(f"/topics/{path}")
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def test_newest_value_of_a_key_is_answered(site: Site) -> None:
    topic = compacted(site, partitionCount=3)
    put(site, topic, "a/b", "old")
    put(site, topic, "other", "text")
    put(site, topic, "a/b", '{"price": 5}')
    found = latest(site, f"{topic}/latest/a%2Fb")
    assert (found["key"], found["value"]) == ("a/b", {"price": 5})
    assert latest(site, f"{topic}/latest/YS9i?base64=true") == found
    assert latest(site, f"{topic}/latest/other")["value"] == "text"
    put(site, topic, "a/b", "new")
    assert latest(site, f"{topic}/latest/a%2Fb")["value"] == "new"


def test_values_of_all_keys_come_by_page(site: Site) -> None:
    topic = compacted(site, partitionCount=3)
    for turn in range(2):
        for number in range(7):
            put(site, topic, f"k{number}", f"v{number}.{turn}")
    found: list[dict[str, Any]] = []
    ends: list[str | None] = [""]
    for size in (3, 3, 1):
        page = latest(site, f"{topic}/latest?limit=3&after={quote(ends[-1] or '', safe='')}")
        assert len(page["values"]) == size
        found += page["values"]
        ends.append(page["next"])
    assert [end is None for end in ends] == [False, False, False, True]
    assert {one["key"]: one["value"] for one in found} == {f"k{n}": f"v{n}.1" for n in range(7)}
    assert [one["key"] for one in found] == sorted(one["key"] for one in found)


def test_key_without_a_value_is_not_found(site: Site) -> None:
    topic = compacted(site)
    answer = site.client.get(f"/topics/{topic}/latest/none")
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (404, 5008)
    put(site, topic, "gone", "value")
    answer = site.client.post(
        f"/events/{topic}",
        data='{"key": "gone", "value": null}',
        content_type="application/vnd.dragoman+ndjson",
    )
    assert answer.status_code == 200, answer.text
    answer = site.client.get(f"/topics/{topic}/latest/gone")
    assert answer.status_code == 404
    assert "is deleted" in answer.get_json()["message"]
    assert latest(site, f"{topic}/latest")["values"] == []


def test_topic_that_is_not_compacted_says_how_it_becomes_so(site: Site) -> None:
    topic = compacted(site, cleanupPolicy="delete")
    for path in ("latest", "latest/k"):
        answer = site.client.get(f"/topics/{topic}/{path}")
        assert answer.status_code == 403
        assert "cleanupPolicy" in answer.get_json()["message"]


@pytest.mark.parametrize("path", ["latest?after=%21", "latest/%21?base64=true"])
def test_what_is_no_base64_is_refused(site: Site, path: str) -> None:
    assert site.client.get(f"/topics/{compacted(site)}/{path}").status_code == 400


def test_bytes_that_are_no_text_are_shown_in_base64(site: Site) -> None:
    topic = compacted(site)
    put(site, topic, "k", b"\xff\x00")
    assert latest(site, f"{topic}/latest/k")["value_base64"] == "/wA="
