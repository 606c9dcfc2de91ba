"""Checksums of rows: each column of each table is in one, and a bit that flips is found."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from router.broker.disk.database import DatabaseSchema
from router.broker.disk.row_sums import check_rows, install
from router.broker.node import registry
from router.broker.node.registry import FILE, FileRegistry, RegistryDamagedError
from router.broker.storage import metadata

VALUE = b"a value that stands nowhere else"


@pytest.mark.parametrize("schema", [metadata.SCHEMA, registry._SCHEMA])
def test_every_column_of_every_table_is_in_the_checksum_of_its_row(
    schema: DatabaseSchema,
) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        install(connection)
        connection.executescript(schema.statements)
        check_rows(connection, "copy")
        tables = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        assert len(tables) > 1
        for name, statement in tables:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            summed = f"sum INTEGER AS (row_sum({', '.join(columns)})) STORED"
            assert summed in " ".join(statement.split())


@pytest.mark.parametrize("bit", range(8))
def test_a_bit_that_flips_in_a_record_is_found_by_the_next_start(tmp_path: Path, bit: int) -> None:
    async def write() -> None:
        opened = await FileRegistry.open(tmp_path)
        await opened.put("key", "a", VALUE, 0)
        await opened.close()

    asyncio.run(write())
    path = tmp_path / FILE
    other = bytes([VALUE[0] ^ 1 << bit]) + VALUE[1:]
    path.write_bytes(path.read_bytes().replace(VALUE, other))
    with pytest.raises(RegistryDamagedError, match="a row of records is not as it was written"):
        asyncio.run(FileRegistry.open(tmp_path))
