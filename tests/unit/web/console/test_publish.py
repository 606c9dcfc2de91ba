"""The form that publishes: headers, files, schemas, repeats, and what is wrong with JSON."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from router.model import Schema, SchemaType, Stored, TopicName
from router.web.console import fields as form_fields
from tests.unit.web.applications import Site

TOPIC = TopicName.parse("t")
ORDER = orjson.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]})


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    made = sites(publish_max_batch="1M")
    made.client.post("/topics/create", json={"topicName": "t"})
    return made


def send(site: Site, status: int = 200, **form: Any) -> dict[str, Any]:
    """Send the form as a script does."""
    answer = site.client.post(
        "/console/topics/t/publish?format=json", data=form, content_type="multipart/form-data"
    )
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def stored(site: Site) -> list[Stored]:
    return list(site.backend.topic(TOPIC).logs[-1].messages)


def test_headers_go_with_each_message(site: Site) -> None:
    send(site, message="a\nb", key="k", headers="colour: dark: green\r\n\r\n empty:\n")
    assert [one.message.value for one in stored(site)] == [b"a", b"b"]
    for one in stored(site):
        assert dict(one.message.properties) == {"colour": "dark: green", "empty": ""}
        assert one.message.key == b"k"


@pytest.mark.parametrize(
    ("form", "null"),
    [({"whole": "1"}, False), ({"null": "1"}, True), ({"null": "1", "repeat": "1"}, True)],
)
def test_one_message_may_be_empty_or_have_no_value(
    site: Site, form: dict[str, Any], null: bool
) -> None:
    assert send(site, key="k", headers="h: 1", **form)["stored"] == 1
    (one,) = stored(site)
    assert (one.message.value, one.message.null, one.message.key) == (b"", null, b"k")
    assert dict(one.message.properties) == {"h": "1"}


def test_message_without_a_value_has_no_text(site: Site) -> None:
    assert "null: " in send(site, 400, message="a", null="1")["detail"]
    assert stored(site) == []


@pytest.mark.parametrize(
    "headers",
    ["colour", ": value", "x: " + "y" * 70_000, "\n".join(f"h{n}: 1" for n in range(101))],
)
def test_headers_that_cannot_be_read_are_refused(site: Site, headers: str) -> None:
    assert "headers: expected" in send(site, 400, message="a", headers=headers)["detail"]
    assert stored(site) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "values"),
    [
        ({"format": "Text"}, [b"one", b"two"]),
        ({"format": "Text", "whole": "1"}, [b"one\r\ntwo"]),
    ],
)
def test_file_takes_the_place_of_the_message(
    site: Site, form: dict[str, Any], values: list[bytes]
) -> None:
    found = send(site, message="unused", file=(io.BytesIO(b"one\r\ntwo"), "a b.txt"), **form)
    assert [one.message.value for one in stored(site)] == values
    assert any("'@a b.txt'" in line for line in found["commands"])


def test_file_of_bytes_is_one_message_as_it_is(site: Site) -> None:
    data = bytes(range(256)) + b"\r\n--boundary"
    send(site, file=(io.BytesIO(data), "x.bin"), whole="1")
    assert [one.message.value for one in stored(site)] == [data]


def test_no_file_is_chosen(site: Site) -> None:
    send(site, message="a", file=(io.BytesIO(b""), ""))
    assert [one.message.value for one in stored(site)] == [b"a"]


def test_form_that_is_too_large_is_413(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form_fields, "MAX_UPLOAD_BYTES", 1000)
    found = send(site, 413, file=(io.BytesIO(b"x" * 1001), "x"))
    assert "The limit is 1000 bytes" in found["detail"]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--x\r\n\r\n--x--"),
        ("multipart/form-data; boundary=x", b"--x"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nno name\r\n--x--"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="m"\r\n\r\n\xff\r\n--x--',
        ),
        ("multipart/form-data; boundary=x", b"--x\r\n" * 110 + b"--x--"),
    ],
)
def test_form_with_parts_that_cannot_be_read_is_400(site: Site, kind: str, body: bytes) -> None:
    answer = site.client.post("/console/topics/t/publish", data=body, content_type=kind)
    assert answer.status_code == 400
    assert stored(site) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "where"),
    [
        ('{"a": 1}\n{"b": }', "line 2, column 7"),
        ("{", "line 1, column 2"),
        ('[{"ä": 1},\n 5]', "line 2, column 2"),
    ],
)
def test_json_is_checked_before_anything_is_stored(site: Site, message: str, where: str) -> None:
    assert f"That is {where}." in send(site, 400, format="JSON", message=message)["detail"]
    assert stored(site) == []


def test_messages_are_repeated_and_the_count_told(site: Site) -> None:
    found = send(site, message="a\nb", headers="h: 1", repeat="3")
    assert found["stored"] == 6
    assert [one.message.value for one in stored(site)] == [b"a", b"b"] * 3
    assert found["commands"][-1].startswith("for n in $(seq 3); do printf ")


@pytest.mark.parametrize(
    ("form", "status", "says"),
    [
        ({"message": "a", "repeat": "0"}, 400, "repeat: expected 1 to 10000"),
        ({"message": "a", "repeat": "10001"}, 400, "repeat: expected 1 to 10000"),
        ({"message": "a", "repeat": "x"}, 400, "repeat: expected"),
        ({"message": "a\nb", "repeat": "5001"}, 413, "10000 messages"),
        ({"message": "a" * 1000, "repeat": "2000"}, 413, "1048576 bytes"),
    ],
)
def test_repeats_are_bounded(site: Site, form: dict[str, str], status: int, says: str) -> None:
    assert says in send(site, status, **form)["detail"]
    assert stored(site) == []


def test_values_are_encoded_by_the_schema_of_the_topic(site: Site) -> None:
    version = site.backend.schemas.put(TOPIC, Schema(SchemaType.AVRO, ORDER), 5)
    page = site.client.get("/console/topics/t", headers={"Accept": "text/html"}).text
    assert "schema (AVRO)" in page
    found = send(site, format="JSON", message='[{"id": 1}, {"id": -1}]', schema="1")
    assert [one.message.value for one in stored(site)] == [b"\x02", b"\x01"]
    assert {one.message.schema_version for one in stored(site)} == {version}
    [line] = found["commands"]
    words = shlex.split(line)
    answer = site.client.post(
        words[-1].removeprefix("http://localhost"),
        data=words[words.index("--data-raw") + 1],
        content_type="application/json",
    )
    assert answer.status_code == 200
    assert [one.message.value for one in stored(site)][2:] == [b"\x02", b"\x01"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ('{"id": "x"}', "Value 1:"),
        ('{"id": 1}\n{"id": "x"}', "Value 2:"),
        ('{"id": 1}\n{', "line 2, column 2"),
        ("[" * 100_000, "nested too deep"),
        ('{"id": 1e999999}', "Value 1:"),
    ],
)
def test_value_that_does_not_fit_its_schema_is_refused(site: Site, message: str, says: str) -> None:
    site.backend.schemas.put(TOPIC, Schema(SchemaType.AVRO, ORDER), 5)
    assert says in send(site, 400, message=message, schema="1")["detail"]
    assert stored(site) == []


def test_topic_without_a_schema_takes_no_values_by_it(site: Site) -> None:
    assert "has none" in send(site, 400, message="{}", schema="1")["detail"]


def test_line_with_headers_stores_the_same(site: Site) -> None:
    found = send(site, message="ä b\nc", key="it's", headers="colour: dark")
    words = shlex.split(found["commands"][0])
    site.client.post(
        words[-1].removeprefix("http://localhost"),
        data=words[words.index("--data-raw") + 1],
        content_type="application/json",
    )
    first, second, *again = stored(site)
    assert [one.message for one in again] == [first.message, second.message]
    assert "--header colour=dark" in found["commands"][1]
