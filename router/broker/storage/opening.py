"""Owns the opening of a data folder: everything between an existing folder and a store that serves.

It blocks, and runs in one thread before the event loop sees any of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from router.broker.disk import database
from router.broker.disk.faults import FormatError, StoreError
from router.broker.folder import BACKUP, read_mark, write_mark
from router.broker.storage import loading, metadata, rows
from router.broker.storage.catalog import StorageCatalog
from router.broker.storage.checkpointer import begin_flush, end_flush, write_flush
from router.broker.storage.context import StoreContext
from router.broker.storage.faults import leaves_mark
from router.broker.storage.recovery import JournalReplay, open_journal, reading_journal, recover
from router.broker.storage.rows import SubscriptionRecord
from router.broker.storage.segments import file_name, folder_of


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found."""

    connection: sqlite3.Connection
    boot: int
    history: int
    catalog: StorageCatalog


def open_folder(context: StoreContext) -> Opened:
    """Recover the folder; leave the mark if it may not be opened again before a repair.

    Raises FormatError for a folder of another format, StoreError otherwise.
    """
    try:
        _refuse_mark(context.folder)
        if context.disk.make_folder(context.folder):
            context.disk.sync_folder(context.folder.parent)
        for name in ("journal", "ledgers"):
            context.disk.make_folder(context.folder / name)
        connection = database.connect(context.folder / "metadata.db", context.disk, metadata.SCHEMA)
        try:
            return _recover(context, connection)
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.Error, StoreError, ValueError) as error:
        context.files.close()
        context.writer.close()
        sentence = f"cannot open the data folder {context.folder}: {error}"
        if leaves_mark(error):
            write_mark(context.folder, sentence)
        raise (FormatError if isinstance(error, FormatError) else StoreError)(sentence) from error


def _refuse_mark(folder: Path) -> None:
    if (reason := read_mark(folder)) is not None:
        raise StoreError(f"it is marked READ-ONLY ({reason}); run `router check --repair`")


def _recover(context: StoreContext, connection: sqlite3.Connection) -> Opened:
    journal, closed = loading.load_meta(connection)
    disk = context.disk
    database.transact(connection, disk, rows.delete_unfinished)
    catalog = load_catalog(context, connection)
    _remove_unknown_folders(context, catalog.ids)
    if (context.folder / BACKUP).exists():
        _remove_unknown_segments(context, connection)

    @cache
    def find_subscription(number: int) -> SubscriptionRecord | None:
        # The journal names subscriptions without their ledgers.
        query = "SELECT ledger_id FROM subscriptions WHERE id = ?"
        row = connection.execute(query, (number,)).fetchone()
        return None if row is None else catalog.subscription(row[0], number)

    replay = JournalReplay(catalog.find, find_subscription, catalog.values)

    def relieve() -> None:
        tails = context.tails
        # Files of thousands of ledgers take seconds: what one kill leaves is written behind.
        if tails.unflushed_size > 2 * context.options.cache:
            work = begin_flush(tails, catalog.roll_ms)
            end_flush(tails, work, write_flush(context.writer, work))
            tails.evict(context.options.cache)

    context.files.tidy()
    with reading_journal():
        needed = open_journal(disk, context.files, journal, closed=closed)
    context.files.remove(needed[0] if needed else journal)
    number = needed[-1] + 1 if needed else journal
    recover(disk, context.files, number, replay, relieve)
    catalog.unsaved.update(replay.cursors)
    ledgers, fitted = catalog.recovered()
    clipped = [
        (ledger.id, ledger.deleted_numbers.take_changes())
        for ledger in ledgers
        if ledger.deleted_numbers.remove_from(ledger.next_index)
    ]
    removed = [
        ledger
        for ledger in ledgers
        if ledger.removed_entry > ledger.next_entry or ledger.removed_number > ledger.next_index
    ]
    for ledger in removed:
        ledger.removed_entry = min(ledger.removed_entry, ledger.next_entry)
        ledger.removed_number = min(ledger.removed_number, ledger.next_index)

    def begin(connection: sqlite3.Connection) -> int:
        # Before anything is appended: those numbers are given out again.
        for ledger_id, changes in clipped:
            rows.save_deleted(connection, ledger_id, changes)
        for ledger in removed:
            bounds = {"removed_entry": ledger.removed_entry}
            bounds["removed_number"] = ledger.removed_number
            rows.update(connection, "ledgers", ledger.id, **bounds)
        rows.save_cursors(connection, [record.state() for record in fitted])
        return rows.next_boot(connection)

    boot = database.transact(connection, disk, begin)
    return Opened(connection, boot, metadata.history_of(connection), catalog)


def load_catalog(context: StoreContext, connection: sqlite3.Connection) -> StorageCatalog:
    """Return what the metadata has, all of it idle; raise ValueError, sqlite3.Error."""
    catalog = StorageCatalog(context)
    with loading.reading_rows():
        for stored in loading.stored_ledgers(connection):
            loading.check_segments(stored)
            catalog.add_idle(stored)
        catalog.topics = loading.load_topics(connection, catalog.idle())
        loading.load_values(connection, catalog.values)
    return catalog


def _remove_unknown_folders(context: StoreContext, ledgers: Container[int]) -> None:
    """Remove the folders of topics whose deletion was cut short."""
    root = context.folder / "ledgers"
    for name in context.disk.list(root):
        if name.isdecimal() and int(name) not in ledgers:
            context.writer.remove_ledger(int(name))


def _remove_unknown_segments(context: StoreContext, connection: sqlite3.Connection) -> None:
    """Remove the segments whose removal a backup held up when the process was killed.

    Those that were flushed after the last checkpoint go too: the journal has what they hold.
    """
    root, disk = context.folder / "ledgers", context.disk
    found = connection.execute("SELECT ledger_id, first_entry, generation FROM segments")
    known = {folder_of(root, ledger) / file_name(*rest) for ledger, *rest in found}
    for ledger in disk.list(root):
        for name in disk.list(root / ledger) if ledger.isdecimal() else ():
            path = root / ledger / name
            if path.with_suffix(".seg") not in known:
                disk.unlink(path)
