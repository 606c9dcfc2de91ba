"""A form that is refused without script is shown with its values, and the error at its field."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from io import BytesIO
from pathlib import Path

import pytest
from werkzeug.test import TestResponse

from router.web.requests import MAX_FIELDS
from tests.unit.web.applications import HASHES, Site

BROWSER = {"Accept": "text/html,*/*;q=0.8"}


def fields(answer: TestResponse) -> dict[str, str]:
    """Return the values of the inputs of the page's form."""
    main = answer.text.partition("<main")[2]
    found = re.findall(r'<input[^>]* name="([^"]*)" value="([^"]*)"', main)
    found += re.findall(r'<textarea[^>]* name="([^"]*)"[^>]*>\n([^<]*)</textarea>', main)
    return {name: unescape(text) for name, text in found}


def invalid(answer: TestResponse) -> list[str]:
    marked = re.findall(r'name="([^"]*)"[^>]*aria-invalid="true"', answer.text)
    return [*marked]


@pytest.mark.parametrize(
    ("path", "given", "wrong"),
    [
        ("/console/topics", {"name": "<b>", "partitions": "2", "retention": "7d"}, []),
        ("/console/topics", {"name": "u", "partitions": "two", "retention": ""}, ["partitions"]),
        ("/console/topics/t/delete", {"confirm": "other"}, ["confirm"]),
        ("/console/topics/t/publish", {"message": "a\nb", "headers": "no colon"}, ["headers"]),
        ("/console/topics/t/groups/g/reset", {"to": "time", "time": "soon"}, ["time"]),
    ],
)
def test_values_are_kept_and_the_field_is_marked(
    site: Site, path: str, given: dict[str, str], wrong: list[str]
) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    site.poll("/events/t/g/1")
    answer = site.client.post(path, data=given, headers=BROWSER)
    assert 400 <= answer.status_code < 500
    assert fields(answer) == given
    assert invalid(answer) == wrong
    assert "<b>" not in answer.text


def test_form_that_is_corrected_does_what_it_was_to_do(site: Site) -> None:
    refused = site.client.post(
        "/console/topics", data={"name": "u", "partitions": "x"}, headers=BROWSER
    )
    form = fields(refused) | {"partitions": "2"}
    assert 'method="post"' in refused.text
    assert site.client.post("/console/topics", data=form, headers=BROWSER).status_code == 303


def test_page_that_asks_for_what_cannot_be_read_has_its_fields_too(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    site.poll("/events/t/g/1")
    page = "/console/topics/t/groups/g/reset?to=time&time=soon"
    answer = site.client.get(page, headers=BROWSER)
    assert (answer.status_code, fields(answer)["time"]) == (400, "soon")
    assert site.client.get("/console/nothing?a=b", headers=BROWSER).text.count("<form") == 1


def test_query_that_is_no_utf_8_or_too_long_is_no_failure_of_its_own(site: Site) -> None:
    page = "/console/topics/t?tab=messages&from=soon"
    site.client.post("/console/topics", data={"name": "t"})
    answer = site.client.get(f"{page}&filter=%ff", headers=BROWSER)
    assert (answer.status_code, fields(answer)["filter"]) == (400, "\ufffd")
    many = "&".join(f"a{number}=1" for number in range(MAX_FIELDS))
    answer = site.client.get(f"{page}&{many}", headers=BROWSER)
    assert (answer.status_code, fields(answer)) == (400, {})


def test_link_has_no_fields_of_its_own(site: Site) -> None:
    page = "/console/groups?page=x&q=a&Your_password=&Call_this_number=1"
    answer = site.client.get(page, headers=BROWSER)
    assert (answer.status_code, fields(answer)) == (400, {"page": "x", "q": "a"})
    assert "Your password" not in answer.text


def test_box_that_was_checked_stays_checked(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    form = {"message": "a", "whole": "yes", "headers": "no colon"}
    answer = site.client.post("/console/topics/t/publish", data=form, headers=BROWSER)
    assert '<input type="checkbox" name="whole" value="yes" checked>' in answer.text


@pytest.mark.parametrize("text", ["yes", "on"])
def test_text_that_is_the_word_of_a_box_stays_text(site: Site, text: str) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    form = {"key": text, "message": text, "headers": "no colon"}
    answer = site.client.post("/console/topics/t/publish", data=form, headers=BROWSER)
    assert fields(answer) == form
    assert "checkbox" not in answer.text


def test_form_with_a_file_is_not_shown_without_it(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    form = {"headers": "no colon", "file": (BytesIO(b"a"), "a.txt")}
    answer = site.client.post("/console/topics/t/publish", data=form, headers=BROWSER)
    assert (answer.status_code, fields(answer)) == (400, {})


def test_form_of_another_page_is_not_shown(sites: Callable[..., Site], tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{HASHES['argon2']}\n")
    site = sites(auth_users=str(users))
    form = {"user": "anna", "password": "secret"}
    assert site.client.post("/console/signin", data=form).status_code == 303
    given = {"name": "u", "partitions": "x", "csrf_token": "wrong"}
    answer = site.client.post("/console/topics", data=given, headers=BROWSER)
    assert (answer.status_code, fields(answer)) == (403, {})
