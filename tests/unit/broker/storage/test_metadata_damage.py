"""Metadata that says what was never written: a start refuses it and serves nothing of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from router.broker.disk import row_sums
from router.broker.storage import StoreError
from router.model.policies import Policies
from tests.unit.broker.storage.rig import TOPIC, fill, one_ledger, opened, payload


def changed(statement: str) -> Callable[[Path], None]:
    """Return what changes the metadata by a statement."""

    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            row_sums.install(connection)
            assert connection.execute(statement).rowcount == 1

    return change


def renamed(path: Path) -> None:
    """Change a topic's name in its row or in the index, but not in both."""
    data = path.read_bytes()
    path.write_bytes(data.replace(TOPIC.encode(), TOPIC.replace("orders", "ordess").encode(), 1))


def flipped(path: Path) -> None:
    """Change a bit of a topic's property."""
    path.write_bytes(path.read_bytes().replace(b"needle", b"neddle"))


DAMAGE = {
    "a segment goes beyond the next": changed(
        "UPDATE segments SET next_entry = next_entry + 64 WHERE first_entry = 0"
    ),
    "a segment ends before the next, and no message is missing": changed(
        "UPDATE segments SET next_entry = next_entry - 1 WHERE first_entry = 0"
    ),
    "a segment goes beyond its ledger": changed("UPDATE ledgers SET next_index = 1 WHERE id = 1"),
    "a ledger is another topic's": changed(
        "UPDATE ledgers SET topic_id = 2, partition = 1 WHERE id = 1"
    ),
    "a name is not that of its index": renamed,
    "a property has another value": flipped,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
async def test_metadata_that_contradicts_itself_is_refused(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    async with opened(folder) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(40)])
        await store.create_topic(f"{TOPIC}-2", 0, Policies(), {"a": "needle"})
    damage(folder / "data" / "metadata.db")
    with pytest.raises(StoreError, match="metadata is damaged"):
        async with opened(folder):
            pass
