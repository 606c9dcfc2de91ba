"""What sentences to clients quote, and that none of them quotes as Python does."""

from __future__ import annotations

import ast
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import router
from router.errors.quoting import MAX_QUOTED, failure_text, quoted

FOLDER: Final = Path(router.__path__[0])
TOLD: Final = ("web", "broker", "services", "backends", "schemas", "wire", "access", "coordination")
"""Packages whose sentences clients read."""
# Their sentences are about settings and files, and are read on a terminal or in a log.
FOR_OPERATORS: Final = {
    "access/aaf.py",
    "access/certificates.py",
    "backends/kafka/options.py",
    "backends/pulsar/address.py",
    "broker/process.py",
    "web/worker/stream.py",
    # definitions, and the source that is generated from them
    "wire/kafka/compatibility.py",
    "wire/kafka/drawing.py",
    "wire/kafka/engine.py",
    "wire/kafka/runtime.py",
    "wire/kafka/source.py",
}


@given(text=st.text(max_size=100))
def test_text_is_quoted_as_json_has_it(text: str) -> None:
    shown = quoted(text)
    assert shown.isprintable()
    assert shown.encode()
    if len(text) <= MAX_QUOTED:
        assert orjson.loads(shown) == text or any(ord(char) > 0xFFFF for char in text)


@given(text=st.text(st.characters(categories=["Cs", "Cc", "L"]), max_size=20))
def test_half_characters_are_escaped(text: str) -> None:
    assert quoted(text).encode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        (b"a\xff", '"a�"'),
        ("it's", '"it\'s"'),
        ('a"b\\', '"a\\"b\\\\"'),
        ("\ud800\n", '"\\ud800\\n"'),
        ({"a": 1}, "an object"),
        ([1], "a list"),
        ("x" * 81, '"' + "x" * 80 + '..."'),
    ],
)
def test_value_is_quoted_as_clients_know_it(value: object, shown: str) -> None:
    assert quoted(value) == shown


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/a/path"),
            "No space left on device",
        ),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(), "no reason was given"),
        (TimeoutError("timed out"), "timed out"),
        (KeyError("ledgers"), 'there is no "ledgers"'),
        (ValueError("No 'type' property: {'a': 1}"), 'No "type" property ...'),
        (ValueError("bad value b'x' of <object at 0x7f>"), 'bad value "x" of ...'),
        (ValueError("it is None"), "it is null"),
        (ValueError("[Error 3] not there"), "not there"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), "no UTF-8 at byte 0"),
    ],
)
def test_failure_is_told_without_what_is_for_the_log(failure: Exception, sentence: str) -> None:
    assert failure_text(failure) == sentence


@pytest.mark.no_cover
def test_no_sentence_for_clients_quotes_as_python_does() -> None:
    """Python's notation in a sentence is `quoted`, or `failure_text` for the failure of a library.

    Sentences of SettingError and lines of the log are for operators.
    """
    found = [f"{path}:{line}" for path, line in _representations()]
    assert found == []


def _representations() -> Iterator[tuple[str, int]]:
    files = [
        *(path for part in TOLD for path in (FOLDER / part).rglob("*.py")),
        *FOLDER.glob("*.py"),
    ]
    for path in sorted(files):
        name = str(path.relative_to(FOLDER))
        if name in FOR_OPERATORS or name == "metrics.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        exempt = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).startswith(("SettingError", "_log."))
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if node not in exempt and isinstance(node, ast.expr) and _is_representation(node):
                yield name, node.lineno


def _is_representation(node: ast.expr) -> bool:
    if isinstance(node, ast.FormattedValue):
        return node.conversion in {ord("r"), ord("a")}
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"repr", "ascii"}
    )
