"""Owns `router check` on stored data: looking at a data folder that no broker serves, and repair.

Both hold the folder's lock themselves while they work; they refuse a folder that a broker holds.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from router.broker.disk.database import transact
from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk, opened, read_all
from router.broker.folder import MARK, hold_unserved
from router.broker.storage import metadata
from router.broker.storage.commit_groups import guess_file_header
from router.broker.storage.faults import JournalDamagedError
from router.broker.storage.inspection import Finding, inspect_journal, inspect_ledger
from router.broker.storage.journal import JournalFiles
from router.broker.storage.loading import Rows, load
from router.broker.storage.options import Clock
from router.broker.storage.recovery import JournalFile, open_journal, read_journal
from router.broker.storage.repair import JournalRepair, RepairContext, repair_ledger


def check(folder: Path) -> list[Finding]:
    """Read everything that is stored and return what is wrong, changing nothing.

    Raises StoreError if a broker holds the folder, or if the metadata cannot be read at all. A
    folder without data is in order.
    """
    database = folder / "metadata.db"
    if not database.exists():
        return list(_marked(folder))
    try:
        with hold_unserved(folder), metadata.connect_read_only(database) as found:
            rest = () if found is None else _inspect(folder, _load(found, database))
            return [*_marked(folder), *rest]
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"the metadata {database} is damaged; restore a backup: {error}"
        ) from error


def repair(folder: Path, clock: Clock, disk: Disk | None = None) -> list[Finding]:
    """Give up what cannot be read and make everything else servable; return what was found.

    Raises StoreError if a broker holds the folder, if the metadata cannot be read (then only a
    backup helps), or if the disk fails; a repair that was cut short can be begun again.
    """
    disk = disk or Disk()
    if not (folder / "metadata.db").exists():
        findings = [replace(finding, repaired=True) for finding in _marked(folder)]
    else:
        with hold_unserved(folder):
            findings = _repair(folder, disk, int(clock() * 1000))
    disk.unlink(folder / MARK)
    return findings


def _repair(folder: Path, disk: Disk, now_ms: int) -> list[Finding]:
    findings = [replace(finding, repaired=True) for finding in _marked(folder)]
    database = folder / "metadata.db"
    try:
        with closing(metadata.connect(database, disk)) as connection:
            found = _load(connection, database)
            context = RepairContext(folder, disk, connection, now_ms)
            findings += _repair_journal(context, found)
            for row in load(connection).ledgers.values():
                findings += repair_ledger(context, row)
            if findings:
                transact(connection, disk, metadata.begin_history)
            disk.sync_folder(folder)
    except sqlite3.DatabaseError as error:
        raise StoreError(f"the metadata {database} cannot be used: {error}") from error
    except OSError as error:
        raise StoreError(f"the repair of {folder} was cut short: {error}") from error
    return findings


def _repair_journal(context: RepairContext, found: Rows) -> list[Finding]:
    files = _journal(context.folder, context.disk)
    findings = list(inspect_journal(context.disk, files, found))
    if not any(finding.serious for finding in findings):
        # Recovery deals with a commit group that was cut short by itself.
        return findings
    try:
        numbers = open_journal(context.disk, files, found.journal, closed=found.closed)
    except JournalDamagedError:
        numbers = [number for number in files.numbers() if number >= found.journal]
    work = JournalRepair(context, found)
    for number in numbers:
        work.take(_read_anyway(context.disk, files.path(number)))
    after = max([found.journal, *numbers]) + 1
    work.finish(after)
    files.remove(after)
    return [replace(finding, repaired=True) for finding in findings]


def _read_anyway(disk: Disk, path: Path) -> JournalFile:
    """Return a journal file even if its header is damaged: its commit groups repeat what counts."""
    try:
        return read_journal(disk, path)
    except JournalDamagedError:
        with opened(disk, path, os.O_RDONLY) as descriptor:
            data = read_all(disk, descriptor, disk.size(descriptor), 0)
        return JournalFile(path, guess_file_header(data, int(path.stem)), data)


def _inspect(folder: Path, found: Rows) -> Iterator[Finding]:
    disk = Disk()
    yield from inspect_journal(disk, _journal(folder, disk), found)
    for row in found.ledgers.values():
        yield from inspect_ledger(disk, folder / "ledgers", row)


def _journal(folder: Path, disk: Disk) -> JournalFiles:
    return JournalFiles(disk, folder / "journal", 0, relaxed=False)


def _load(connection: sqlite3.Connection, database: Path) -> Rows:
    try:
        problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        if problems == ["ok"]:
            return load(connection)
    except (sqlite3.Error, ValueError, KeyError) as error:
        problems = [str(error)]
    raise StoreError(f"the metadata {database} is damaged; restore a backup: {problems[0]}")


def _marked(folder: Path) -> Iterator[Finding]:
    mark = folder / MARK
    if mark.exists():
        reason = mark.read_text(encoding="utf-8", errors="replace").strip()
        yield Finding(f"the folder is marked READ-ONLY: {reason}", serious=True, file=mark)
