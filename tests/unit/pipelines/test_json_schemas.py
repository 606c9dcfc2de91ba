"""Values against JSON schemas: one sentence for what is wrong, and the same one every time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pipelines.jobs.validating import MAX_SENTENCE_CHARACTERS, checked, reason

ORDER = json.dumps(
    {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 1}, "note": {"type": "string"}},
        "required": ["id"],
    }
)


@given(st.integers(-3, 3), st.one_of(st.none(), st.text(max_size=5), st.integers()))
def test_reason_is_none_exactly_when_the_value_is_valid(number: int, note: object) -> None:
    value = json.dumps({"id": number, "note": note}).encode()
    assert (reason({"orders": ORDER}, "orders", value) is None) == (
        number >= 1 and isinstance(note, str)
    )


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b'{"id": "x"}', "$.id: 'x' is not of type 'integer'"),
        (b"{}", "$: 'id' is a required property"),
        (b'{"id": 0}', "$.id: 0 is less than the minimum of 1"),
        (b"{", "no JSON: "),
        (b"\xff", "no JSON: "),
        (b"", "no JSON: "),
        (b'{"id": NaN}', "no JSON: "),
        (None, "there is no value"),
    ],
)
def test_reason_names_the_place(value: bytes | None, sentence: str) -> None:
    found = reason({"*": ORDER}, "orders", value)
    assert found is not None
    assert found.startswith(sentence)
    assert found == reason({"*": ORDER}, "orders", value)


@given(st.binary(max_size=60))
def test_reason_is_a_bounded_sentence_for_any_bytes(value: bytes) -> None:
    found = reason({"*": ORDER}, "orders", value)
    assert found is None or 0 < len(found) <= MAX_SENTENCE_CHARACTERS


def test_topic_without_a_schema_is_refused() -> None:
    assert reason({"orders": ORDER}, "bills", b"{}") == "there is no schema for bills"


def test_own_schema_goes_before_that_of_the_others() -> None:
    assert reason({"orders": ORDER, "*": "true"}, "orders", b"{}") is not None
    assert reason({"orders": ORDER, "*": "true"}, "bills", b"{}") is None


def test_nothing_is_fetched_when_a_schema_refers_to_an_address() -> None:
    schema = json.dumps({"$ref": "http://127.0.0.1:1/order.json"})
    assert reason({"*": schema}, "orders", b"{}") == (
        "the schema refers to http://127.0.0.1:1/order.json, which is not in it"
    )


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '{"type": "no such type"}', '{"minimum": "x"}', '{"required": 1}']
)
def test_text_that_is_no_schema_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="the schema of orders is no") as error:
        checked("orders", text)
    assert "\n" not in str(error.value)


def test_schema_is_accepted() -> None:
    checked("orders", ORDER)
    checked("orders", "true")
