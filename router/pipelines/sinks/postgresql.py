"""The SQL that puts a batch into a table of PostgreSQL, each statement as text."""

# ruff: noqa: S608 - names are quoted, by the database or here, and values are parameters

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# The table is found as the database finds it: by schema, or along its search path.
FIND: Final = (
    "SELECT quote_ident(n.nspname), quote_ident(c.relname) FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(?)"
)
COLUMNS: Final = (
    "SELECT attname, quote_ident(attname) FROM pg_attribute"
    " WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
)
# How many digits a column has behind the point, where that is bounded: of a NUMERIC 11 bits with a
# sign, of MONEY those of the currency. A domain has the type beneath it, which may be one again, an
# array that of its elements.
SCALES: Final = (
    "WITH RECURSIVE kinds (name, type, bounds) AS ("
    "SELECT quote_ident(attname), atttypid, atttypmod FROM pg_attribute"
    " WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped"
    " UNION ALL SELECT name, typbasetype, typtypmod FROM kinds JOIN pg_type ON oid = type"
    " WHERE typtype = 'd')"
    ", elements (name, type, bounds) AS (SELECT name, coalesce(nullif(typelem, 0), type), bounds"
    " FROM kinds JOIN pg_type ON oid = type)"
    " SELECT name, CASE type WHEN 'numeric'::regtype"
    " THEN (((bounds - 4) & 2047) # 1024) - 1024"
    " WHEN 'money'::regtype THEN scale(1::money::numeric) ELSE 0 END FROM elements"
    " WHERE type IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'money'::regtype)"
    " OR (type = 'numeric'::regtype AND bounds >= 0)"
)
LEFT: Final = (
    "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_class c"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE starts_with(c.relname, ?)"
)
# CREATE TABLE IF NOT EXISTS fails where another transaction creates the table at the same time.
ALONE: Final = "SELECT pg_advisory_xact_lock(7033471200)"
# Two upserts of the same keys in another order would wait for each other's rows for ever.
UPSERT_ALONE: Final = "SELECT pg_advisory_xact_lock(hashtextextended(?, 7033471200))"
STAGED: Final = "router_staged_"


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that rows go to; its names are quoted.

    `columns` has those that rows have, by the rows' names in lower case.
    """

    schema: str
    name: str
    columns: Mapping[str, str]
    key: Sequence[str] = ()
    order: str = ""
    deletes: str = ""

    @property
    def batches(self) -> str:
        """The table of this schema that has the number of the last batch of each query."""
        return f"{self.schema}.router_batches"

    def create_batches(self) -> str:
        """Return what creates it."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.batches} (query text PRIMARY KEY,"
            " batch bigint NOT NULL, sink text NOT NULL, written timestamptz NOT NULL)"
        )

    def last(self) -> str:
        """Return what gives the number of a query's last batch."""
        return f"SELECT batch FROM {self.batches} WHERE query = ?"

    def claim(self) -> str:
        """Return what notes a query, its batch and its sink; it changes no row for one noted."""
        return (
            f"INSERT INTO {self.batches} AS b VALUES (?, ?::bigint, ?, now()) ON CONFLICT (query)"
            " DO UPDATE SET batch = excluded.batch, written = now() WHERE b.batch < excluded.batch"
        )

    def stage(self, staged: str, names: Sequence[str]) -> str:
        """Return what creates the table that executors write a batch to, with the same types."""
        gone = f", NULL::boolean AS {_quoted(self.deletes)}" if self.deletes else ""
        return (
            f"CREATE UNLOGGED TABLE {staged} AS SELECT {', '.join(self._columns(names))}{gone}"
            f" FROM {self.name} WITH NO DATA"
        )

    def prove(self, staged: str, names: Sequence[str], types: Sequence[str]) -> str:
        """Return what fails unless values of these types can be staged."""
        places = ", ".join(f"${place}" for place in range(1, len(names) + 1))
        return (
            f"PREPARE router_proof ({', '.join(types)}) AS"
            f" INSERT INTO {staged} ({', '.join(self._columns(names))}) VALUES ({places})"
        )

    def count(self, staged: str) -> str:
        """Return what gives the number of rows that are staged, and of those without a key."""
        lacking = " OR ".join(f"{one} IS NULL" for one in self._columns(self.key)) or "false"
        return f"SELECT count(*), count(*) FILTER (WHERE {lacking}) FROM {staged}"

    def apply(self, staged: str, names: Sequence[str]) -> list[str]:
        """Return what takes the rows that are staged, at most one for each key, into the table."""
        columns = self._columns(names)
        listed = ", ".join(columns)
        insert = f"INSERT INTO {self.name} AS t ({listed}) SELECT {listed} FROM {staged} AS s"
        if not self.key:
            return [insert]
        key = self._columns(self.key)
        gone = f"coalesce(s.{_quoted(self.deletes)}, false)" if self.deletes else "false"
        same = " AND ".join(f"t.{one} = s.{one}" for one in key)
        changed = ", ".join(f"{one} = excluded.{one}" for one in columns if one not in key)
        update = f"UPDATE SET {changed} WHERE {self._newer('excluded')}" if changed else "NOTHING"
        upsert = f"{insert} WHERE NOT {gone} ON CONFLICT ({', '.join(key)}) DO {update}"
        if not self.deletes:
            return [upsert]
        delete = f"DELETE FROM {self.name} AS t USING {staged} AS s"
        return [f"{delete} WHERE {same} AND {gone} AND {self._newer('s')}", upsert]

    def _newer(self, row: str) -> str:
        if not self.order:
            return "true"
        [order] = self._columns([self.order])
        return f"coalesce({row}.{order} >= t.{order}, t.{order} IS NULL)"

    def _columns(self, names: Sequence[str]) -> list[str]:
        return [self.columns[name.lower()] for name in names]


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
