"""Fields of JSON bodies that administration reads, and its answers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response

from router.errors import BadRequestError
from router.errors.quoting import json_failure, quoted
from router.web import requests

FIELDS: Final = "router.fields"
"""Where the environment has the fields that were read."""
MAX_BODY: Final = 64 * 1024
_WHOLE: Final = re.compile(r"\s*-?[0-9]{1,18}\s*")


def fields(environ: WSGIEnvironment, known: Collection[str]) -> dict[str, Any]:
    """Return the object in the body; raise BadRequestError for one that has other fields."""
    body = requests.body(environ, MAX_BODY)
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"Incorrect JSON object: {json_failure(body, error)}.") from error
    if not isinstance(values, dict):
        raise BadRequestError(f"Incorrect JSON object: expected one with {', '.join(known)}.")
    for name in values:
        if name not in known:
            raise BadRequestError(
                f"Unrecognized field {quoted(name)}; known are {', '.join(known)}."
            )
    environ[FIELDS] = values
    return values


def text(values: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a field that is text; raise BadRequestError."""
    value = values.get(name, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise BadRequestError(f"{name}: expected a text.")
    return value


def number(values: Mapping[str, Any], name: str) -> int | None:
    """Return a field that is a whole number, maybe written as text; raise BadRequestError."""
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number: 2.0 is 2
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 63:
        raise BadRequestError(f"{name}: expected a whole number.")
    return value


def flag(values: Mapping[str, Any], name: str) -> bool | None:
    """Return a field that is true or false, maybe written as text; raise BadRequestError."""
    value = values.get(name)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    if value is not None and not isinstance(value, bool):
        raise BadRequestError(f"{name}: expected true or false.")
    return value


def answer(value: object, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return Response(orjson.dumps(value), status=status, mimetype="application/json")


def sentence(words: str) -> Response:
    """Return an answer that is a sentence, of the type that the original says it is."""
    return Response(words, mimetype="text/html")
