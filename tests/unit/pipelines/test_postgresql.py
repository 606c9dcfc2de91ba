"""The SQL of a batch for PostgreSQL: how names are quoted, and what a key makes of it."""

from __future__ import annotations

from dataclasses import replace

from router.pipelines.sinks.postgresql import TargetTable

COLUMNS = {"id": "id", "name": '"Name"', "at": "at"}
TABLE = TargetTable("public", 'public."Or ders"', COLUMNS)


def test_rows_are_inserted_without_a_key() -> None:
    assert TABLE.apply("s1", ["ID", "name"]) == [
        'INSERT INTO public."Or ders" AS t (id, "Name") SELECT id, "Name" FROM s1 AS s'
    ]


def test_key_deletes_first_and_replaces_older_rows_only() -> None:
    table = replace(TABLE, key=("id",), order="at", deletes='go"ne')
    delete, upsert = table.apply("s1", list(COLUMNS))
    assert delete == (
        'DELETE FROM public."Or ders" AS t USING s1 AS s WHERE t.id = s.id'
        ' AND coalesce(s."go""ne", false) AND coalesce(s.at >= t.at, t.at IS NULL)'
    )
    assert upsert.endswith(
        'WHERE NOT coalesce(s."go""ne", false) ON CONFLICT (id) DO UPDATE SET'
        ' "Name" = excluded."Name", at = excluded.at'
        " WHERE coalesce(excluded.at >= t.at, t.at IS NULL)"
    )


def test_row_of_nothing_but_its_key_replaces_nothing() -> None:
    [upsert] = replace(TABLE, key=("id",)).apply("s1", ["id"])
    assert upsert.endswith("WHERE NOT false ON CONFLICT (id) DO NOTHING")
