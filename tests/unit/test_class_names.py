"""A class of router/ is known by its name: no other module has one that is called the same."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def classes(source: str) -> list[str]:
    """Return the names of all classes of a module, nested ones too."""
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def repeated(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that more than one class has, with their modules."""
    places = defaultdict(list)
    for module, source in sources:
        for name in classes(source):
            places[name].append(module)
    return {name: modules for name, modules in places.items() if len(modules) > 1}


def test_a_name_in_two_modules_is_found() -> None:
    sources = [("a", "class Page: pass"), ("b", "class Row:\n  class Page: pass")]
    assert repeated(sources) == {"Page": ["a", "b"]}


@pytest.mark.no_cover
def test_class_names_are_unique() -> None:
    paths = sorted((ROOT / "router").rglob("*.py"))
    sources = [
        (str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for path in paths
        if not path.name.endswith("_pb2.py")
    ]
    assert len(sources) > 100
    assert repeated(sources) == {}
