"""Every row of the table of failures, reached over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from werkzeug.test import TestResponse

from router import errors
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    PublishRefusedError,
    ReadFailedError,
    SubscriptionBusyError,
    by_code,
)
from router.model import TopicName
from router.services.publish import Publisher
from router.web.dmaap.errors import ROUTES, TABLE
from tests.unit.web.applications import BOTH, Site

Sites = Callable[..., Site]


def told(answer: TestResponse) -> tuple[int, int, int]:
    body = answer.get_json()
    assert set(body) == BOTH
    assert body["httpStatusCode"] == body["status"] == answer.status_code
    assert body["errorMessage"] == body["message"]
    assert body["transactionid"] == answer.headers["transactionId"]
    return body["status"], body["mrErrorCode"], body["mrstatus"]


def test_table_knows_every_failure() -> None:
    assert set(TABLE) == set(by_code())


def test_routes_with_numbers_of_their_own_are_routes(site: Site) -> None:
    assert {endpoint for endpoint, _ in ROUTES} <= set(site.app.view_functions)
    assert {code for _, code in ROUTES} <= set(TABLE)


def test_batch_too_large_is_3001(sites: Sites) -> None:
    assert told(sites(publish_max_batch="10").post("/events/t", "x" * 11)) == (413, 3001, 5001)


def test_message_too_large_is_3004(sites: Sites) -> None:
    assert told(sites(publish_max_message="10").post("/events/t", "x" * 11)) == (413, 3004, 5004)


@pytest.mark.parametrize("body", [b"5.5.hello", b"0.4096001.x", b"x", b"0.1.a0.9.b"])
def test_bad_framing_is_3003(site: Site, body: bytes) -> None:
    assert told(site.post("/events/t", body, "application/cambria")) == (400, 3003, 5007)


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"{", b"[1]", b'{"a":NaN}', b'{"a":"\xff"}', b"7", b"[{}] x"])
def test_bad_json_is_3005(site: Site, body: bytes) -> None:
    assert told(site.post("/events/t", body, "application/json")) == (400, 3005, 5007)


def test_refusal_of_the_backend_is_3002(site: Site) -> None:
    site.backend.publishing.append(PublishRefusedError())
    assert told(site.post("/events/t", "x")) == (500, 3002, 5002)


def test_partial_publish_is_3007_with_the_true_count(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t", "partitionCount": 4})
    body = "".join(f'{{"cambria.partition":"k{i}"}}' for i in range(40))
    site.backend.publishing += [None, BackendTimeoutError()]
    answer = site.post("/events/t", body, "application/json")
    assert told(answer) == (500, 3007, 5007)
    stored = sum(
        p.messages for p in site.backend.describe_topic(TopicName.parse("t"), 1).partitions
    )
    assert 0 < stored < 40
    assert f"Successfully published {stored} number of messages" in answer.get_json()["message"]


def test_backend_down_is_503_with_retry_after(site: Site) -> None:
    site.backend.publishing.append(BackendUnavailableError())
    answer = site.post("/events/t", "x")
    assert told(answer) == (503, 3002, 3002)
    assert answer.headers["Retry-After"] == "1"


def test_no_answer_in_time_is_3006(site: Site) -> None:
    site.backend.publishing.append(BackendTimeoutError())
    assert told(site.post("/events/t", "x")) == (504, 3006, 5006)


def test_unknown_topic_on_get_is_3001(site: Site) -> None:
    answer = site.poll("/events/nowhere/g/c")
    assert told(answer) == (404, 3001, 3001)
    assert answer.get_json()["message"] == "No such topic exists.-[nowhere]"


def test_unknown_topic_on_post_is_3001_when_none_are_made(sites: Sites) -> None:
    site = sites(topics_auto_create="false")
    assert told(site.post("/events/nowhere", "x")) == (404, 3001, 3001)


@pytest.mark.parametrize("path", ["/events/t", "/events/t/g", "/events/t/g/"])
def test_get_without_group_or_id_is_5008(site: Site, path: str) -> None:
    assert told(site.client.get(path)) == (404, 5008, 5008)


def test_failed_reading_is_3009(site: Site) -> None:
    site.post("/events/t", "x")
    site.backend.reading.append(ReadFailedError())
    assert told(site.poll()) == (500, 3009, 5008)


@pytest.mark.parametrize("query", ["from=yesterday", "ack=never"])
def test_malformed_reading_option_is_3010(site: Site, query: str) -> None:
    assert told(site.client.get(f"/events/t/g/c?{query}")) == (400, 3010, 5008)


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["json", "a/b;q=x", "*/*;q=2"])
def test_malformed_accept_is_3010(site: Site, accept: str) -> None:
    assert told(site.poll(Accept=accept)) == (400, 3010, 5008)


def test_message_over_max_bytes_is_3011_and_stays(site: Site) -> None:
    site.post("/events/t", "x" * 20)
    assert told(site.poll("/events/t/g/c?maxBytes=19")) == (413, 3011, 5008)
    assert site.poll("/events/t/g/c?maxBytes=20").get_json() == ["x" * 20]


def test_get_with_a_large_body_is_3008(sites: Sites) -> None:
    site = sites(publish_max_batch="10")
    assert told(site.client.get("/events/t/g/c", data="x" * 11)) == (413, 3008, 5008)


def test_lease_not_had_is_503_and_says_who_holds_it(site: Site) -> None:
    site.post("/events/t", "x")
    site.poll()
    site.backend.opening += [SubscriptionBusyError("held by a Pulsar consumer")]
    answer = site.poll()
    assert told(answer) == (503, 3002, 3002)
    assert "held by a Pulsar consumer" in answer.get_json()["message"]


def test_eleventh_empty_poll_of_a_minute_is_5012(site: Site) -> None:
    site.post("/events/t", "x")
    assert [site.poll().status_code for _ in range(11)] == [200] * 11
    answer = site.poll()
    assert told(answer) == (429, 5012, 5012)
    assert 0 < int(answer.headers["Retry-After"]) <= 60


def test_eleventh_empty_poll_is_503_as_in_the_original_when_asked_for(sites: Sites) -> None:
    site = sites(consume_limit_status="503", consume_empty_polls_per_minute="1")
    site.post("/events/t", "x")
    assert [site.poll().status_code for _ in range(2)] == [200, 200]
    answer = site.poll()
    assert told(answer) == (503, 3002, 3002)
    assert int(answer.headers["Retry-After"]) > 0


def test_refused_polls_do_not_count_and_messages_are_always_served(sites: Sites) -> None:
    site = sites(consume_empty_polls_per_minute="1")
    site.post("/events/t", "x")
    assert [site.poll().status_code for _ in range(4)] == [200, 200, 429, 429]
    site.post("/events/t", "y")
    assert site.poll().get_json() == ["y"]


@pytest.mark.parametrize("method", ["put", "delete", "patch"])
def test_wrong_method_is_3003_and_names_the_right_ones(site: Site, method: str) -> None:
    answer = getattr(site.client, method)("/events/t")
    assert told(answer) == (405, 3003, 3003)
    assert {"GET", "POST"} <= set(answer.headers["Allow"].split(", "))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/nowhere", "/event/t", "/events", "/events/t/g/c/d", "/events//g/c"]
)
def test_unknown_path_is_3001(site: Site, path: str) -> None:
    assert told(site.client.get(path)) == (404, 3001, 3001)


@pytest.mark.parametrize(
    "path",
    [
        "/events/%zz",
        "/events/%ff",
        "/events/a%2Fb",
        "/events/..",
        "/events/" + "x" * 250,
        "/events/a b",
        "/events/%C3%A9",
    ],
)
def test_bad_name_is_400(site: Site, path: str) -> None:
    answer = site.client.post(path, data="x", environ_overrides={"RAW_URI": path})
    assert told(answer) == (400, 5005, 5005)


@pytest.mark.slow
def test_unreadable_messages_for_text_are_406_and_stay(site: Site) -> None:
    site.post("/events/t", b"two\nlines", "application/octet-stream")
    assert told(site.poll(Accept="text/plain")) == (406, 5008, 5008)
    assert site.poll().get_json() == ["two\nlines"]


def test_format_that_nobody_writes_is_406(site: Site) -> None:
    assert told(site.poll(Accept="image/png")) == (406, 5008, 5008)


def test_unknown_content_encoding_is_415(site: Site) -> None:
    answer = site.client.post("/events/t", data="x", headers={"Content-Encoding": "br"})
    assert told(answer) == (415, 3003, 5007)
    assert "gzip" in answer.headers["Accept-Encoding"]


def test_other_number_of_partitions_is_409(site: Site) -> None:
    body = {"topicName": "t", "partitionCount": 2}
    site.client.post("/topics/create", json=body)
    answer = site.client.post("/topics/create", json=body | {"partitionCount": 3})
    assert told(answer) == (409, 6003, 6003)


# A partial publish tells how much is stored (above); one of nothing is a refusal.
@pytest.mark.slow
@pytest.mark.parametrize("code", sorted(TABLE.keys() - {"partial-publish"}))
def test_every_code_can_be_told(site: Site, code: str) -> None:
    site.backend.publishing.append(errors.from_code(code, "a sentence"))
    row = ROUTES.get(("events.publish", code)) or TABLE[code]
    # The directory is asked again where the topic may have gone, and the second try succeeds.
    if code in {"topic-not-found", "namespace-not-found", "not-allowed"}:
        site.backend.publishing.append(errors.from_code(code, "a sentence"))
    assert told(site.post("/events/t", "x")) == (row.status, row.code, row.mrstatus)


def test_failure_of_ours_is_500_and_tells_nothing(site: Site) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the code")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publisher, "publish_steps", broken)
        answer = site.post("/events/t", "x")
    assert told(answer) == (500, 1004, 1004)
    assert b"secret" not in answer.data
