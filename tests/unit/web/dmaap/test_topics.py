"""The topics API."""

from __future__ import annotations

from typing import Any

import pytest

from router.model import TopicInfo, TopicName
from tests.unit.web.applications import Site

DETAILS = {
    "name": "t",
    "description": "",
    "owner": "",
    "readerAcl": {"enabled": True, "users": []},
    "writerAcl": {"enabled": True, "users": []},
    "partitionCount": 1,
    "replicationCount": 1,
    "transactionEnabled": False,
    "retentionMs": None,
    "retentionBytes": None,
    "backlogBytes": None,
    "deduplication": None,
    "cleanupPolicy": "delete",
}


@pytest.mark.parametrize(
    ("created", "differs"),
    [
        ({}, {}),
        # as the original's own test suite sends it
        (
            {"topicDescription": "d", "partitionCount": "3", "replicationCount": "1",
             "transactionEnabled": "true"},
            {"description": "d", "partitionCount": 3, "transactionEnabled": True},
        ),
        (
            {"retentionMs": 5, "retentionBytes": -1, "backlogBytes": "7", "deduplication": True},
            {"retentionMs": 5, "retentionBytes": -1, "backlogBytes": 7, "deduplication": True},
        ),
        # JSON has one kind of number
        ({"partitionCount": 3.0, "retentionMs": 5e3}, {"partitionCount": 3, "retentionMs": 5_000}),
        ({"cleanupPolicy": "compact,delete"}, {"cleanupPolicy": "compact,delete"}),
        ({"cleanupPolicy": None}, {}),
        # this store keeps one copy, whatever is asked for
        ({"replicationCount": 3}, {}),
        ({"partitionCount": None, "transactionEnabled": False, "topicDescription": None}, {}),
    ],
)  # fmt: skip
def test_created_topic_is_what_was_asked_for(
    site: Site, created: dict[str, Any], differs: dict[str, Any]
) -> None:
    answer = site.client.post("/topics/create", json={"topicName": "t"} | created)
    assert (answer.status_code, answer.get_json()) == (200, DETAILS | differs)
    assert site.client.get("/topics/t").get_json() == DETAILS | differs


@pytest.mark.slow
@pytest.mark.parametrize(
    "created",
    [{}, {"topicName": 7}, {"topicName": "a/b"}, {"topicName": "a%41"}, {"topicName": ""},
     {"topicName": "t", "surprise": 1}, {"topicName": "t", "partitionCount": "many"},
     {"topicName": "t", "partitionCount": True}, {"topicName": "t", "partitionCount": -1},
     {"topicName": "t", "partitionCount": 1001}, {"topicName": "t", "partitionCount": 1.5},
     {"topicName": "t", "replicationCount": "x"}, {"topicName": "t", "transactionEnabled": "maybe"},
     {"topicName": "t", "retentionMs": -2}, {"topicName": "t", "topicDescription": 1},
     {"topicName": "t", "topicDescription": "x" * 5000}, []],
)  # fmt: skip
def test_create_of_nonsense_is_refused(site: Site, created: object) -> None:
    answer = site.client.post("/topics/create", json=created)
    body = answer.get_json()
    assert (answer.status_code, body["mrErrorCode"], body["mrstatus"]) == (400, 5005, 5005)
    assert site.client.get("/topics").get_json() == {"topics": []}


@pytest.mark.parametrize("body", [b"", b"{", b'{"topicName":"t"', b"\xff"])
def test_create_of_bad_json_is_refused(site: Site, body: bytes) -> None:
    answer = site.client.post("/topics/create", data=body)
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (400, 5005)


def test_create_of_what_exists_answers_nothing(site: Site) -> None:
    created = {"topicName": "t", "partitionCount": 2}
    site.client.post("/topics/create", json=created)
    for again in (created, {"topicName": "t"}):
        answer = site.client.post("/topics/create", json=again)
        assert (answer.status_code, answer.data) == (204, b"")


def test_create_uses_the_setting_where_nothing_is_asked(sites: Any) -> None:
    site = sites(topics_auto_partitions="4")
    site.client.post("/topics/create", json={"topicName": "t"})
    assert site.client.get("/topics/t").get_json()["partitionCount"] == 4


@pytest.mark.slow
def test_topics_are_listed_as_in_the_original(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "b", "transactionEnabled": True})
    site.post("/events/a", "x")
    assert site.client.get("/topics").get_json() == {"topics": ["a", "b"]}
    assert site.client.get("/topics/listAll").get_json() == {
        "topics": [
            {"topicName": "a", "owner": "", "txenabled": False},
            {"topicName": "b", "owner": "", "txenabled": True},
        ]
    }


def test_internal_topics_are_listed_when_they_are_requested(site: Site) -> None:
    site.post("/events/a", "x")
    site.backend.create_topic(TopicInfo(TopicName.parse("__b"), 3, internal=True), 1)
    for query in ("", "?internal=false"):
        assert site.client.get(f"/topics{query}").get_json() == {"topics": ["a"]}
        assert site.client.get(f"/topics/listAll{query}").get_json() == {
            "topics": [{"topicName": "a", "owner": "", "txenabled": False}]
        }
    assert site.client.get("/topics?internal=true").get_json() == {"topics": ["__b", "a"]}
    mark = {"owner": "", "txenabled": False, "internal": True, "partitionCount": 3}
    assert site.client.get("/topics/listAll?internal=true").get_json() == {
        "topics": [
            mark | {"topicName": "__b"},
            mark | {"topicName": "a", "internal": False, "partitionCount": 1},
        ]
    }


def test_deleted_topic_is_gone(site: Site) -> None:
    site.post("/events/t", "x")
    answer = site.client.delete("/topics/t")
    assert (answer.status_code, answer.text) == (200, "Topic [t] deleted successfully")
    for again in (site.client.delete("/topics/t"), site.client.get("/topics/t"), site.poll()):
        assert (again.status_code, again.get_json()["mrErrorCode"]) == (404, 3001)


@pytest.mark.parametrize(
    ("method", "path"),
    [("post", "/topics"), ("put", "/topics/t"), ("get", "/topics/t/producers/k/x")],
)
def test_what_topics_do_not_offer_is_refused(site: Site, method: str, path: str) -> None:
    answer = getattr(site.client, method)(path)
    assert answer.status_code in {404, 405}
    assert answer.get_json()["mrErrorCode"] in {3001, 3003}
