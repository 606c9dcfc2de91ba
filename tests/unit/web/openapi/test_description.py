"""What stands beside views: forms of schemas, and routes."""

from __future__ import annotations

from typing import Any

import pytest

from router.web.openapi.description import (
    Form,
    described,
    operation,
    routes_of,
    schema,
    shape,
    text,
)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer", "minimum": 0}),
        (object, {}),
        (str | None, {"type": ["string", "null"]}),
        (int | str | None, {"type": ["integer", "string", "null"]}),
        ([bool], {"type": "array", "items": {"type": "boolean"}}),
        (dict[str, str], {"type": "object", "additionalProperties": {"type": "string"}}),
        ({"const": -1}, {"const": -1}),
    ],
)
def test_form_stands_for_its_schema(form: Form, expected: dict[str, Any]) -> None:
    assert schema(form) == expected


def test_shape_requires_the_fields_that_are_not_optional() -> None:
    assert shape({"name": str}, {"count": int}) == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer", "minimum": 0}},
        "required": ["name"],
    }
    assert "required" not in shape({}, {"count": int})


class _Views:
    @operation("GET /things", "GET /all-things every", text("q", "A text."))
    def things(self) -> str:
        return "things"

    def helper(self) -> str:
        return "no route"


class _MoreViews(_Views):
    @operation("POST /things")
    def create(self) -> str:
        return "created"


def test_routes_are_those_of_the_decorators_inherited_ones_too() -> None:
    found = [
        (verb, path, endpoint, view()) for verb, path, endpoint, view in routes_of(_MoreViews())
    ]
    assert found == [
        ("GET", "/things", "things", "things"),
        ("GET", "/all-things", "every", "things"),
        ("POST", "/things", "create", "created"),
    ]
    operation_of_things = described(_Views.things)
    assert operation_of_things is not None
    assert [one.name for one in operation_of_things.parameters] == ["q"]
