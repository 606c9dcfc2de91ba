"""Names of router/ are those of docs/glossary.md: words that were retired do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.console import ROOT

# Each with the word to use.
RETIRED = {
    "asked": "requested",
    "Behind": "PageCacheAdvisor",
    "behind": "after, stop",
    "Calls": "a context with a name of its own",
    "Crowd": "ConnectionLimiter",
    "Deaf": "NullObserver",
    "Deal": "PartitionAssignor",
    "deal": "assignment",
    "Door": "Authorizer",
    "Directory": "TopicMetadataCache",
    "demand": "authorize",
    "fleeting": "non_persistent",
    "flying": "in_flight",
    "fresh": "pending",
    "Gate": "Authorizer",
    "Ground": "a context with a name of its own",
    "Given": "InFlightTracker",
    "intake": "request",
    "Keeper": "Checkpointer",
    "Keeping": "StorageMode",
    "KEPT": "what is bounded, and the unit",
    "Lane": "PartitionProducer, PartitionAccumulator",
    "Later": "DeferredResponse",
    "leads": "the batch leader",
    "LOOK": "POLL_SECONDS",
    "LULL": "yield_to_loop",
    "Mark": "ProducerState",
    "MOST": "what is bounded, and the unit",
    "NOWHERE": "NO_POSITION",
    "Parked": "suspended connections",
    "Parts": "a context with a name of its own",
    "PATIENCE": "TIMEOUT_SECONDS, RETRY_SECONDS",
    "Portion": "PublishBatch",
    "Remembered": "TTLCache",
    "Room": "MemoryBudget",
    "Runners": "a greenlet pool",
    "said": "failure_text, description",
    "seat": "slot",
    "Shown": "Credentials",
    "Slots": "HandleTable",
    "strangers": "unauthenticated",
    "stretch": "range, read",
    "sure": "is_valid",
    "Sweep": "RetentionTask, EmptyFolderTask",
    "Tails": "TailCache",
    "Tending": "Maintenance",
    "Told": "Observer, Listener",
    "told": "notified",
    "Tools": "a context with a name of its own",
    "trouble": "unavailable_reason",
    "troubled": "availability_changed",
    "Turns": "FrameScheduler, CommitTurns",
    "Wakeup": "Event",
    "wanted": "what is requested",
    "whereabouts": "peer_address",
    "Whence": "StartPosition",
    "Wish": "PollRequest",
}

# Parts of names that are spoken English: of whatever a module defines, private or local.
SPOKEN = {
    "asked": "requested",
    "behind": "after, lag",
    "patience": "timeout, retry_seconds",
    "said": "message, notified",
    "say": "notify, report",
    "says": "message, reason",
    "stretch": "range",
    "told": "notified",
    "wanted": "requested, required",
}


def names(source: str) -> Iterator[str]:
    """Yield the names of classes, functions and constants that a module defines."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id
            elif isinstance(node, ast.Assign):
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            if isinstance(node, ast.ClassDef):
                waiting.append(node)


def defined_names(source: str) -> Iterator[str]:
    """Yield the names that a module defines, with parameters, fields and local variables."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def spoken(name: str) -> str:
    """Return what to use in a name in place of spoken English, "" if it has none."""
    words = name.strip("_").lower().split("_")
    if {"letter", "letters"} & set(words) and "dead" not in words:
        return "dead_letter"
    return next((SPOKEN[word] for word in words if word in SPOKEN), "")


def is_retired(name: str) -> bool:
    """Return whether a name is retired; a private function or field may be called anything."""
    bare = name.lstrip("_")
    return bare in RETIRED and (name == bare or bare[:1].isupper())


@pytest.mark.parametrize("name", ["Lane", "_Lane", "PATIENCE"])
def test_a_retired_name_is_found(name: str) -> None:
    assert [one for one in names(f"{name} = 1") if is_retired(one)] == [name]


def test_no_name_of_the_router_is_retired() -> None:
    found = []
    for path in sorted((ROOT / "router").rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        where = path.relative_to(ROOT)
        used = [path.stem, *names(path.read_text(encoding="utf-8"))]
        found += [
            f"{where}: {name}: {RETIRED[name.lstrip('_')]}" for name in used if is_retired(name)
        ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("def f(patience): ...", "patience"),
        ("def f(): _told_at = 1", "_told_at"),
        ("class A:\n    def g(self): self.letters = 1", "letters"),
        ("MAX_SAID: int", "MAX_SAID"),
    ],
)
def test_spoken_english_of_a_name_is_found(source: str, name: str) -> None:
    assert [one for one in defined_names(source) if spoken(one)] == [name]


def test_no_name_of_the_router_is_spoken_english() -> None:
    found = []
    for path in sorted((ROOT / "router").rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            used = {path.stem, *defined_names(path.read_text(encoding="utf-8"))}
            where = path.relative_to(ROOT)
            found += [f"{where}: {name}: {spoken(name)}" for name in sorted(used) if spoken(name)]
    assert found == []


def test_no_constructor_from_settings_is_called_of() -> None:
    pattern = re.compile(r"def of\(\s*cls, settings\b")
    files = (ROOT / "router").rglob("*.py")
    assert [str(path) for path in files if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_terms_of_the_glossary_stand_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE)
    terms = [term for term in terms if term not in {"Term", "---"}]
    assert len(terms) == len(set(terms)) >= 35


def test_places_of_the_glossary_exist() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    places = set(re.findall(r"`(router/[\w/.]+)`", text))
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []
