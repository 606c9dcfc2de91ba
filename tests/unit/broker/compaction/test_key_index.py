"""The index of keys is a dict on disk: over restarts, and damage is an error or is begun again."""

from __future__ import annotations

import sqlite3
import tempfile
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.broker.compaction.key_index import (
    IndexDamagedError,
    IndexProgress,
    KeyedMessage,
    KeyIndex,
)
from router.broker.disk.files import Disk

KEYS = st.binary(max_size=3)


def opened(path: Path, ledger_id: int = 7) -> KeyIndex:
    return KeyIndex(path, ledger_id, Disk())


def messages(*keys: bytes, start: int = 0) -> list[KeyedMessage]:
    return [KeyedMessage(key, number, 1_000, False) for number, key in enumerate(keys, start)]


@pytest.mark.slow
@settings(max_examples=40)
@given(
    batches=st.lists(st.tuples(st.lists(st.tuples(KEYS, st.booleans()), max_size=8), st.booleans()))
)
def test_index_equals_a_dict_and_knows_what_is_superseded(
    batches: list[tuple[list[tuple[bytes, bool]], bool]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "keys" / "7.db"
        index = opened(path)
        newest: dict[bytes, KeyedMessage] = {}
        successors: dict[int, int] = {}
        starts = accumulate((len(batch) for batch, _ in batches), initial=0)
        for start, (batch, reopens) in zip(starts, batches, strict=False):
            found = [KeyedMessage(k, n, 5, t) for n, (k, t) in enumerate(batch, start)]
            for message in found:
                if message.key in newest:
                    successors[newest[message.key].number] = message.number
                newest[message.key] = message
            index.add(found, start + len(batch), 5)
            if reopens:
                index.close()
                index = opened(path)
            assert index.progress.position == start + len(batch)
            assert [*index.page(None, 10**6)] == [newest[key] for key in sorted(newest)]
            for key in [*newest, b"none"]:
                assert index.find(key) == newest.get(key)
            for end in (0, start, 10**6):
                assert index.superseded(-1, end, 10**6) == sorted(
                    n for n, successor in successors.items() if successor < end
                )
        index.close()


def test_pages_join_to_the_whole(tmp_path: Path) -> None:
    index = opened(tmp_path / "7.db")
    index.add(messages(*(bytes([n]) for n in range(50))), 50, 0)
    keys: list[bytes] = []
    while page := index.page(keys[-1] if keys else None, 7):
        keys += [message.key for message in page]
    assert keys == [bytes([n]) for n in range(50)]
    index.close()


def test_superseded_numbers_come_in_portions_and_are_forgotten(tmp_path: Path) -> None:
    index = opened(tmp_path / "7.db")
    index.add(messages(*([b"k"] * 10)), 10, 0)
    assert index.superseded(-1, 100, 3) == [0, 1, 2]
    assert index.superseded(2, 100, 3) == [3, 4, 5]
    index.forget_superseded([0, 1, 2, 3])
    assert index.superseded(-1, 100, 100) == [4, 5, 6, 7, 8]
    assert index.superseded(-1, 9, 100) == [4, 5, 6, 7]
    index.close()


def test_tombstones_are_due_a_time_after_they_were_cleaned(tmp_path: Path) -> None:
    index = opened(tmp_path / "7.db")
    gone, late, new = (KeyedMessage(k, n, 0, True) for n, k in enumerate((b"a", b"b", b"c")))
    index.add([gone, late], 2, 0)
    assert index.due_tombstones(10**9, 10) == []
    index.mark_cleaned(1, 100)
    index.add([new], 3, 0)
    index.mark_cleaned(2, 200)
    assert index.due_tombstones(99, 10) == []
    assert index.due_tombstones(100, 10) == [gone]
    assert index.due_tombstones(200, 10) == [gone, late]
    assert index.due_tombstones(200, 1) == [gone]
    index.add([KeyedMessage(b"b", 3, 0, True)], 4, 0)  # another one, with a time of its own
    assert index.due_tombstones(200, 10) == [gone]
    index.forget([gone])
    assert index.find(b"a") is None
    index.forget([late])
    assert index.find(b"b") == KeyedMessage(b"b", 3, 0, True)
    index.close()


def test_keys_whose_messages_retention_removed_are_forgotten(tmp_path: Path) -> None:
    index = opened(tmp_path / "7.db")
    index.add(messages(b"a", b"b", b"b", b"c"), 4, 0)
    index.forget_before(2)
    assert [message.key for message in index.page(None, 10)] == [b"b", b"c"]
    assert index.superseded(-1, 100, 10) == []
    index.close()


@pytest.mark.parametrize("column", ["number", "time_ms", "tombstone", "key"])
def test_row_that_was_changed_is_an_error(tmp_path: Path, column: str) -> None:
    path = tmp_path / "7.db"
    index = opened(path)
    index.add(messages(b"a"), 1, 0)
    index.close()
    value = "X'62'" if column == "key" else f"{column} + 1"
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE keys SET {column} = {value}")
    connection.close()
    index = opened(path)
    with pytest.raises(IndexDamagedError):
        index.page(None, 10)
    index.close()


@pytest.mark.parametrize("content", [b"no database" * 100, b""])
def test_file_that_is_no_index_is_begun_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "7.db"
    path.write_bytes(content)
    index = opened(path)
    assert index.progress == IndexProgress()
    index.close()


def test_index_of_an_older_format_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "7.db"
    index = opened(path)
    index.add(messages(b"a"), 1, 0)
    index.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    index = opened(path)
    assert (index.progress, index.find(b"a")) == (IndexProgress(), None)
    index.close()


def test_index_of_another_partition_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "7.db"
    index = opened(path, 8)
    index.add(messages(b"a"), 1, 0)
    index.close()
    index = opened(path)
    assert (index.progress, index.find(b"a")) == (IndexProgress(), None)
    index.close()


def test_index_whose_log_lost_a_part_in_a_power_cut_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "7.db"
    index = opened(path)
    for number in range(4):
        index.add(messages(b"%d" % number, start=number), number + 1, 0)
    log_path = path.with_name(path.name + "-wal")
    log = bytearray(log_path.read_bytes())
    index.close()
    log[32 + 24 : 32 + 24 + 512] = bytes(512)  # of the first frame; the commits behind it are whole
    log_path.write_bytes(log)
    index = opened(path)
    assert (index.progress, index.find(b"3")) == (IndexProgress(), None)
    index.add(messages(b"a"), 1, 0)
    assert index.find(b"a") == messages(b"a")[0]
    index.close()
