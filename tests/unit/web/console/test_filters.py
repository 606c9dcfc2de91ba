"""Which messages a page shows: the server and the script hold to one table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from router.errors import BadReadOptionError
from router.model import Message, Position, Stored
from router.web import bodies
from router.web.console import shown
from router.web.console.filters import NAMES, Filter
from tests.unit.web.console.scripts import Module

ORDER = json.dumps(
    {
        "id": 7,
        "name": "7",
        "paid": True,
        "note": None,
        "order": {"total": 12.50, "unit price": 3},
        "items": [{"sku": "a"}, {"sku": "b=c"}],
        "big": 12345678901234567890,
        "text": 'he said "no"',
        "a.b": 1,
        "": "empty",
    }
).encode()
VALUES = {
    "order": ORDER,
    "list": b"[1,[2,3],{}]",
    "scalar": b'"\xc3\xa4"',
    "not json": b"{'id': 7}",
    "two": b'{"id":7}{"id":8}',
    "nan": b'{"id":NaN}',
    "bytes": b"\xff\x00",
    "empty": b"",
}
YES = [
    ("order", "path", "$.id=7"),
    ("order", "path", " $.id = 7.0 "),
    ("order", "path", "$.id=70e-1"),
    ("order", "path", "$.name=7"),
    ("order", "path", '$.name="7"'),
    ("order", "path", "$.paid=true"),
    ("order", "path", "$.note=null"),
    ("order", "path", "$.note"),
    ("order", "path", "$"),
    ("order", "path", "$.order.total=12.5"),
    ("order", "path", '$.order["unit price"]=3'),
    ("order", "path", '$["a.b"]=1'),
    ("order", "path", '$[""]=empty'),
    ("order", "path", "$.items[1].sku=b=c"),
    ("order", "path", "$.items[*].sku=a"),
    ("order", "path", "$.order.*=3"),
    ("order", "path", '$.text=he said "no"'),
    ("order", "path", r'$.text="he said \"no\""'),
    ("order", "path", "$.big=12345678901234567890"),
    ("list", "path", "$[1][0]=2"),
    ("list", "path", "$[2]"),
    ("scalar", "path", "$=ä"),
    ("order", "key", "Anna"),
    ("order", "header", "colour"),
    ("order", "header", "colour=dark=green"),
    ("order", "header", "none="),
    ("order", "filter", "UNIT PRICE"),
    ("order", "filter", "anna"),
    ("order", "filter", "colour: DARK"),
    ("scalar", "filter", "Ä"),
    ("bytes", "filter", "FF 00"),
    ("order", "partition", "3"),
    ("order", "path", "$.id>6"),
    ("order", "path", "$.id<=7"),
    ("order", "path", "$.id!=8"),
    ("order", "path", "$.name~7"),
    ("order", "path", '$.text~"SAID"'),
    ("order", "filter", "key:Anna"),
    ("order", "filter", "key~NN"),
    ("order", "filter", 'key = "Anna"'.replace(" ", "")),
    ("order", "filter", "key!=bob"),
    ("order", "filter", "header:colour"),
    ("order", "filter", "header:colour=dark=green"),
    ("order", "filter", "header:colour~GREEN"),
    ("order", "filter", "$.order.total > 12"),
    ("order", "filter", '$.order["unit price"] = 3'),
    ("order", "filter", "$.items[*].sku = a and $.id >= 7"),
    ("order", "filter", "$.text ~ said"),
    ("order", "filter", "$.text >= he"),
    ("order", "filter", "nowhere or key:Anna"),
    ("order", "filter", "key:Anna unit price"),
    ("order", "filter", "unit price key:Anna"),
    ("order", "filter", "not (nowhere or key:bob)"),
    ("order", "filter", "NOT nowhere AND (unit price OR nowhere)"),
    ("order", "filter", '"unit price" "total"'),
    ("order", "filter", "paid and not not total"),
    ("order", "filter", "$"),
    ("order", "filter", '"id": 7,'),
    ("scalar", "filter", "not $.a"),
    ("bytes", "filter", "not $"),
]
NO = [
    ("order", "path", "$.id=8"),
    ("order", "path", "$.id=07"),
    ("order", "path", "$.id="),
    ("order", "path", "$.ID"),
    ("order", "path", "$.paid=1"),
    ("order", "path", "$.note=0"),
    ("order", "path", "$.order={}"),
    ("order", "path", "$.items.sku"),
    ("order", "path", "$.items[2]"),
    ("order", "path", "$.items[01].none"),
    ("order", "path", "$.order[0]"),
    ("order", "path", "$.__proto__"),
    ("order", "path", "$.constructor"),
    ("order", "path", "$.items.length"),
    ("list", "path", "$[9]"),
    ("scalar", "path", "$[0]"),
    ("not json", "path", "$"),
    ("two", "path", "$"),
    ("nan", "path", "$"),
    ("bytes", "path", "$"),
    ("empty", "path", "$"),
    ("order", "key", "anna"),
    ("order", "key", "Ann"),
    ("order", "header", "Colour"),
    ("order", "header", "colour=dark"),
    ("order", "header", "toString"),
    ("order", "filter", "nowhere"),
    ("order", "partition", "0"),
    ("order", "path", "$.id>7"),
    ("order", "path", "$.id<7"),
    ("order", "path", "$.id!=7"),
    ("order", "path", "$.id~7"),
    ("order", "path", "$.none!=7"),
    ("order", "path", "$.paid>0"),
    ("order", "path", "$.order~total"),
    ("order", "filter", "key:anna"),
    ("order", "filter", "key!=Anna"),
    ("order", "filter", "key<A"),
    ("order", "filter", "header:none!=dark and header:absent"),
    ("order", "filter", "price unit"),
    ("order", "filter", "nowhere and paid or nowhere"),
    ("order", "filter", "not paid"),
    ("order", "filter", "paid not total"),
    ("order", "filter", "$.order.total > 12.5"),
    ("order", "filter", "$5"),
    ("order", "filter", "(nowhere or nowhere) or (paid and nowhere)"),
    ("order", "filter", '"and"'),
]
UNREADABLE = [
    ("path", "id"),
    ("path", "$."),
    ("path", "$.a b"),
    ("path", "$[x]"),
    ("path", '$["a]'),
    ("path", "$.a)"),
    ("filter", "$."),
    ("filter", "$.a ="),
    ("filter", "$[x]"),
    ("filter", "(a"),
    ("filter", "a)"),
    ("filter", "a or"),
    ("filter", "and a"),
    ("filter", "not"),
    ("filter", "()"),
    ("filter", "key:"),
    ("filter", "header:"),
    ("filter", "(" * 60 + "a" + ")" * 60),
    ("path", "$" + ".a" * 21),
    ("partition", "x"),
    ("partition", "-1"),
    ("partition", "9" * 10),
]
TEXTS = ["plain", "a\tb\nc", "\x00\x1b[31m\x7f", "\x85", "a\u202eb\u2066c\ufeff", "ä€😀"]
TREES = [
    '{"a":[1,{"b":null}],"c":"<b>\\u202e","d":1.50,"e":true}',
    "[]",
    "12345678901234567890",
    '"text"',
    json.dumps([[n] for n in range(400)]),
    "[" * 30 + "]" * 30,
    "{",
    "",
    "NaN",
]


@pytest.fixture(scope="module")
def module() -> Iterator[Module]:
    made = Module("messages.js")
    yield made
    made.close()


def stored(value: bytes) -> Stored:
    headers = {"colour": "dark=green", "none": ""}
    return Stored(Message(value, b"Anna", headers), Position(1, 2, 3), 0)


def given(name: str, text: str) -> Filter:
    return Filter.read({name: text})


def in_script(module: Module, message: Stored, name: str, text: str) -> Any:
    line = bodies.line(message)
    return module.value("matches(readFilter(fields), message)", fields={name: text}, message=line)


@pytest.mark.parametrize(("value", "name", "text"), YES)
def test_message_that_has_it_matches(module: Module, value: str, name: str, text: str) -> None:
    message = stored(VALUES[value])
    assert given(name, text).matches(message)
    assert in_script(module, message, name, text) is True


@pytest.mark.parametrize(("value", "name", "text"), NO)
def test_message_that_has_it_not_is_left_out(
    module: Module, value: str, name: str, text: str
) -> None:
    message = stored(VALUES[value])
    assert not given(name, text).matches(message)
    assert in_script(module, message, name, text) is False


@pytest.mark.parametrize(("name", "text"), UNREADABLE)
def test_filter_that_cannot_be_read_is_refused(module: Module, name: str, text: str) -> None:
    with pytest.raises(BadReadOptionError, match=f"{name}: expected"):
        given(name, text)
    assert module.value("readFilter(fields).unreadable", fields={name: text}) == name


@pytest.mark.parametrize("name", NAMES)
def test_filter_is_bounded(name: str) -> None:
    with pytest.raises(BadReadOptionError, match=f"{name}: expected at most 1000 characters"):
        given(name, "1" * 1001)


def test_path_looks_at_so_many_values_and_no_more(module: Module) -> None:
    message = stored(json.dumps([0] * 10_000 + [1]).encode())
    assert not given("path", "$[*]=1").matches(message)
    assert in_script(module, message, "path", "$[*]=1") is False
    assert given("path", "$[10000]=1").matches(message)


def test_deep_json_matches_nothing_and_fails_nothing() -> None:
    assert not given("path", "$[0]").matches(stored(b"[" * 100_000))
    assert shown.tree("[" * 100_000) is None


@pytest.mark.parametrize("text", TEXTS)
def test_control_characters_are_seen(module: Module, text: str) -> None:
    found = shown.visible(text)
    assert not {"\x00", "\x1b", "\x7f", "\x85", "\u202e", "\u2066", "\ufeff"} & set(found)
    assert module.value("visible(text)", text=text) == found


@pytest.mark.parametrize("text", TREES)
def test_json_is_the_same_tree(module: Module, text: str) -> None:
    assert module.value("tree(text)", text=text) == shown.tree(text)


@pytest.mark.parametrize("value", [b"", b"abc\xff\x00", bytes(range(256)) * 20, "ä€".encode()])
def test_bytes_are_the_same_lines(module: Module, value: bytes) -> None:
    line = bodies.line(stored(value))
    assert module.value("hexdump(message)", message=line) == shown.hexdump(value)
    assert len(shown.hexdump(value).splitlines()) <= 256


def test_id_of_a_message_is_what_addresses_take(module: Module) -> None:
    line = bodies.line(stored(b"a"))
    assert module.value("idOf(message.position)", message=line) == "1:2:3"
