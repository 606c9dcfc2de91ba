"""Definitions of the tests' own: all types, null, tags, keys."""

from __future__ import annotations

import json
from typing import Any

from router.wire.kafka.definitions import INTEGERS
from router.wire.kafka.engine import compile_message

TAGGED = {"tag": 0, "taggedVersions": "2+"}
POINT = [{"name": "X", "type": "int32", "versions": "0+", "default": "7"}]
NAMES = ("bool", *INTEGERS, "float64", "string", "uuid", "bytes")
KINDS: list[dict[str, Any]] = [
    *({"name": kind.capitalize(), "type": kind, "versions": "0+"} for kind in NAMES),
    *({"name": f"{kind.capitalize()}s", "type": f"[]{kind}", "versions": "1+"} for kind in NAMES),
    {"name": "Batch", "type": "records", "versions": "0+", "nullableVersions": "0+"},
    {"name": "Ids", "type": "[]int64", "versions": "0+", "nullableVersions": "1+"},
    {"name": "Text", "type": "string", "versions": "0+", "nullableVersions": "0+"},
    {"name": "Plain", "type": "Plain", "versions": "0+", "fields": POINT},
    {"name": "Maybe", "type": "Maybe", "versions": "0+", "nullableVersions": "0+", "fields": POINT},
    {
        "name": "Keyed",
        "type": "[]Keyed",
        "versions": "0+",
        "fields": [
            {"name": "Id", "type": "int32", "versions": "0+", "mapKey": True},
            {"name": "Part", "type": "string", "versions": "1+", "mapKey": True, "ignorable": True},
        ],
    },
    {
        "name": "TagPlain",
        "type": "TagPlain",
        "versions": "2+",
        "ignorable": True,
        "fields": POINT,
        **TAGGED,
    },
    {
        "name": "TagMaybe",
        "type": "TagMaybe",
        "versions": "2+",
        "nullableVersions": "2+",
        "default": "null",
        "fields": POINT,
        "tag": 1,
        "taggedVersions": "2+",
    },
    {
        "name": "TagNull",
        "type": "TagNull",
        "versions": "2+",
        "nullableVersions": "2+",
        "fields": POINT,
        "tag": 2,
        "taggedVersions": "2+",
    },
    {
        "name": "TagIds",
        "type": "[]int32",
        "versions": "2+",
        "nullableVersions": "2+",
        "tag": 3,
        "taggedVersions": "3+",
    },
]


def text_of(*fields: dict[str, Any]) -> str:
    return json.dumps(
        {
            "type": "data",
            "name": "Example",
            "validVersions": "0-3",
            "flexibleVersions": "2+",
            "fields": list(fields),
        }
    )


ALL_KINDS = compile_message(text_of(*KINDS), "Example.json")
ITEMS: dict[str, Any] = {"name": "Items", "type": "[]Item", "versions": "0+", "fields": POINT}


def example(*fields: dict[str, Any]) -> Any:
    return compile_message(text_of(*fields), "Example.json")
