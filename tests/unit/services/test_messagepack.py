"""MessagePack as JSON: what the specification has, and nothing of what it has not."""

from __future__ import annotations

from typing import Any

import pytest

from router.services.messagepack import MAX_DEPTH, MAX_NODES, structure


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("80", {}),
        ("90", []),
        ("82a7636f6d70616374c3a6736368656d6100", {"compact": True, "schema": 0}),
        ("93c0c2ff", [None, False, -1]),
        ("92ca3fc00000cb3ff8000000000000", [1.5, 1.5]),
        ("94ccffcdffffceffffffffcfffffffffffffffff", [255, 65535, 2**32 - 1, 2**64 - 1]),
        ("94d080d18000d280000000d38000000000000000", [-128, -(2**15), -(2**31), -(2**63)]),
        ("92d90161c40200ff", ["a", "AP8="]),
        ("dc0002da00016101", ["a", 1]),
        ("de0001a16101", {"a": 1}),
        ("df00000001db0000000161dd00000000", {"a": []}),
        ("8101c0", {"1": None}),
        ("91d6ff5a4af6a5", ["2018-01-02T03:04:05+00:00"]),
        ("91d4056b", [{"extension": 5, "data": "aw=="}]),
        ("91c70305010203", [{"extension": 5, "data": "AQID"}]),
        ("91cb7ff8000000000000", ["nan"]),
    ],
)
def test_map_or_array_is_read(data: str, value: Any) -> None:
    assert structure(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain text",
        b"\x05",
        b"\x91",
        b"\x90\x00",
        b"\x91\xc1",
        b"\x91\xa2\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * MAX_NODES,
        b"\x91" * (MAX_DEPTH + 2) + b"\x00",
    ],
)
def test_anything_else_is_none(data: bytes) -> None:
    assert structure(data) is None
