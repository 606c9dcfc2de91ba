"""What every registry promises, asked of each of them through a node: router.backends.Registry."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import memory
from router.errors import BadRequestError, ConflictError
from router.node import Node, client
from router.sharing.registry import MAX_NAME_CHARACTERS, MAX_VALUE_BYTES, Registry
from tests.contract.conftest import WAIT, settings_for, stop_broker
from tests.servers.zookeeper import Zookeeper

pytestmark = pytest.mark.contract

_numbers = itertools.count(1)

NAMES = st.sampled_from(["a", "b", "a/b", ".", "..", "%2F", " ", "é\n", "a" * MAX_NAME_CHARACTERS])


@pytest.fixture(scope="module", params=["memory", "sqlite", "zookeeper"])
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("data")
    with ExitStack() as stack:
        if request.param == "memory":
            node: Node = memory.open_node(settings_for(folder))
        else:
            stack.callback(stop_broker, folder)
            flags = {}
            if request.param == "zookeeper":
                zookeeper: Zookeeper = request.getfixturevalue("zookeeper")
                flags["zookeeper__servers"] = f"{zookeeper.address}/{folder.name}"
                flags["backend__url"] = "kafka://127.0.0.1:1"
            node = client.open_node(settings_for(folder, **flags))
        stack.callback(node.close)
        yield node


@pytest.fixture(scope="module")
def registry(node: Node) -> Registry:
    return node.registry


@pytest.fixture
def kind() -> str:
    return new_kind()


def new_kind() -> str:
    """Return a set of records that no other test uses."""
    return f"kind-{next(_numbers)}"


def together(calls: list[Callable[[], None]]) -> None:
    """Make calls from a thread each, and wait for them."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WAIT)
        assert not thread.is_alive()


def test_what_was_written_is_read(registry: Registry, kind: str) -> None:
    written = registry.put(kind, "a", b'{"x":1}', 0, WAIT)
    assert (written.name, written.value) == ("a", b'{"x":1}')
    assert written.version > 0
    assert registry.get(kind, "a", WAIT) == written
    assert registry.get(kind, "b", WAIT) is None
    assert registry.get(new_kind(), "a", WAIT) is None


Step = tuple[str, str, bytes, str]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete"]),
        NAMES,
        st.binary(max_size=20),
        st.sampled_from(["whatever", "new", "same", "stale"]),
    ),
    max_size=15,
)


@given(steps=STEPS)
@settings(max_examples=15)
def test_registry_does_what_a_dictionary_with_versions_does(
    registry: Registry, steps: list[Step]
) -> None:
    kind = new_kind()
    values: dict[str, tuple[bytes, int]] = {}
    seen = [1]
    for action, name, value, expectation in steps:
        found = values.get(name)
        if action == "delete":
            assert registry.delete(kind, name, WAIT) == (values.pop(name, None) is not None)
            continue
        version = found[1] if found else 0
        expected = {"whatever": None, "new": 0, "same": version, "stale": seen[-1]}[expectation]
        if expected is not None and expected != version:
            with pytest.raises(ConflictError):
                registry.put(kind, name, value, expected, WAIT)
            continue
        written = registry.put(kind, name, value, expected, WAIT)
        assert written.version not in seen[1:]
        seen.append(written.version)
        values[name] = (value, written.version)
    listed = [(record.name, (record.value, record.version)) for record in registry.list(kind, WAIT)]
    assert listed == sorted(values.items())


def test_version_never_returns_when_a_record_is_deleted_and_made_anew(
    registry: Registry, kind: str
) -> None:
    versions = []
    for _ in range(3):
        versions.append(registry.put(kind, "a", b"v", 0, WAIT).version)
        assert registry.delete(kind, "a", WAIT)
    assert sorted(set(versions)) == versions
    registry.put(kind, "a", b"v", 0, WAIT)
    for version in versions:
        with pytest.raises(ConflictError):
            registry.put(kind, "a", b"w", version, WAIT)


def test_no_update_is_lost_when_many_count_at_once(registry: Registry, kind: str) -> None:
    registry.put(kind, "counter", b"0", 0, WAIT)

    def count() -> None:
        for _ in range(5):
            while True:
                found = registry.get(kind, "counter", WAIT)
                assert found is not None
                try:
                    value = b"%d" % (int(found.value) + 1)
                    registry.put(kind, "counter", value, found.version, WAIT)
                except ConflictError:
                    continue
                break

    together([count] * 4)
    counted = registry.get(kind, "counter", WAIT)
    assert counted is not None
    assert counted.value == b"20"


def test_one_wins_when_many_make_the_same_record(registry: Registry, kind: str) -> None:
    won: list[int] = []

    def make(number: int) -> None:
        try:
            registry.put(kind, "a", b"%d" % number, 0, WAIT)
        except ConflictError:
            return
        won.append(number)

    together([lambda number=number: make(number) for number in range(8)])  # type: ignore[misc]
    assert len(won) == 1
    made = registry.get(kind, "a", WAIT)
    assert made is not None
    assert made.value == b"%d" % won[0]


def test_many_readers_at_once_are_all_answered(registry: Registry, kind: str) -> None:
    written = registry.put(kind, "a", b"v", 0, WAIT)
    found: list[object] = []
    together([lambda: found.append(registry.get(kind, "a", WAIT))] * 200)
    assert found == [written] * 200


def test_all_records_are_listed_by_name_however_many_bytes_they_have(
    registry: Registry, kind: str
) -> None:
    names = [f"{number:03}" for number in range(90)]
    for name in reversed(names):
        registry.put(kind, name, b"v" * MAX_VALUE_BYTES, None, WAIT)
    listed = registry.list(kind, WAIT)
    assert [record.name for record in listed] == names
    assert {record.value for record in listed} == {b"v" * MAX_VALUE_BYTES}
    assert registry.list(new_kind(), WAIT) == []


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("", "a", b""),
        ("Key", "a", b""),
        ("../key", "a", b""),
        ("key", "", b""),
        ("key", "a" * (MAX_NAME_CHARACTERS + 1), b""),
        ("key", "a", b"v" * (MAX_VALUE_BYTES + 1)),
    ],
    ids=["no kind", "capitals", "path", "no name", "long name", "large value"],
)
def test_what_no_record_may_be_is_refused(
    registry: Registry, kind: str, name: str, value: bytes
) -> None:
    with pytest.raises(BadRequestError):
        registry.put(kind, name, value, None, WAIT)
