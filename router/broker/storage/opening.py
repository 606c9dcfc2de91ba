"""Owns the opening of a data folder: everything between an existing folder and a store that serves.

It blocks, and runs in one thread before the event loop sees any of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from router.broker.disk import database
from router.broker.disk.faults import FormatError, StoreError
from router.broker.disk.files import Disk
from router.broker.folder import BACKUP, read_mark, write_mark
from router.broker.storage import loading, metadata, rows
from router.broker.storage.catalog import Catalog
from router.broker.storage.checkpointer import begin_flush, end_flush, write_flush
from router.broker.storage.faults import leaves_mark
from router.broker.storage.journal import Journal, JournalFiles
from router.broker.storage.options import StoreOptions
from router.broker.storage.partition import LedgerContext, TailCache
from router.broker.storage.reading import SegmentReader
from router.broker.storage.records import LatestTime
from router.broker.storage.recovery import Replay, open_journal, recover
from router.broker.storage.removals import Removals
from router.broker.storage.rows import SubscriptionRecord
from router.broker.storage.segments import file_of
from router.broker.storage.writing import SegmentLimits, SegmentWriter

_READER_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class StoreContext:
    """The folder to open, and what to open it with."""

    folder: Path
    options: StoreOptions
    disk: Disk
    files: JournalFiles
    writer: SegmentWriter
    ledger_context: LedgerContext
    removals: Removals

    @classmethod
    def build(
        cls, folder: Path, options: StoreOptions, disk: Disk, latest_time: LatestTime
    ) -> StoreContext:
        """Return what a store works with, for the running event loop; no file is opened."""
        files = JournalFiles(disk, folder / "journal", options.journal, relaxed=options.relaxed)
        limits = SegmentLimits(options.segment, options.index_step, options.open_files, latest_time)
        removals = Removals()
        writer = SegmentWriter(disk, folder / "ledgers", limits, removals)
        readers = ThreadPoolExecutor(_READER_THREADS, "reader")
        reader = SegmentReader(disk, folder / "ledgers", latest_time)
        parts = LedgerContext(Journal(files, options.relaxed), reader, readers, TailCache())
        return cls(folder, options, disk, files, writer, parts, removals)


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found."""

    connection: sqlite3.Connection
    boot: int
    catalog: Catalog


def open_folder(context: StoreContext) -> Opened:
    """Recover the folder; leave the mark if it may not be opened again before a repair.

    Raises FormatError for a folder of another format, StoreError otherwise.
    """
    try:
        _refuse_mark(context.folder)
        for folder in (context.folder, context.folder / "journal", context.folder / "ledgers"):
            if context.disk.make_folder(folder):
                context.disk.sync_folder(folder.parent)
        connection = metadata.connect(context.folder / "metadata.db", context.disk)
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

    replay = Replay(catalog.find, find_subscription)

    def relieve() -> None:
        tails = context.ledger_context.tails
        # Files of thousands of ledgers take seconds: what one kill leaves is written behind.
        if tails.unflushed_size > 2 * context.options.cache:
            work = begin_flush(tails, catalog.roll_ms)
            end_flush(tails, work, write_flush(context.writer, work))
            tails.evict(context.options.cache)

    context.files.tidy()
    needed = open_journal(disk, context.files, journal, closed=closed)
    context.files.remove(needed[0] if needed else journal)
    number = needed[-1] + 1 if needed else journal
    recover(disk, context.files, number, replay, relieve)
    catalog.unsaved.update(replay.cursors)
    ledgers, fitted = catalog.recovered()
    clipped = [
        (ledger.id, ledger.next_index)
        for ledger in ledgers
        if ledger.deleted_numbers.remove_from(ledger.next_index)
    ]
    removed = [ledger for ledger in ledgers if ledger.removed_entry > ledger.next_entry]
    for ledger in removed:
        ledger.removed_entry = ledger.next_entry

    def begin(connection: sqlite3.Connection) -> int:
        # Before anything is appended: those numbers are given out again.
        rows.clip_deleted(connection, clipped)
        for ledger in removed:
            rows.update(connection, "ledgers", ledger.id, removed_entry=ledger.removed_entry)
        rows.save_cursors(connection, [record.state() for record in fitted])
        return rows.next_boot(connection)

    return Opened(connection, database.transact(connection, disk, begin), catalog)


def load_catalog(context: StoreContext, connection: sqlite3.Connection) -> Catalog:
    """Return what the metadata has, all of it idle; raise ValueError, sqlite3.Error."""
    catalog = Catalog(context.options, context.ledger_context)
    with loading.understanding():
        for stored in loading.stored_ledgers(connection):
            catalog.add_idle(stored)
        catalog.topics = loading.load_topics(connection, catalog.idle())
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
    found = connection.execute("SELECT ledger_id, first_entry FROM segments")
    known = {file_of(root, ledger, first) for ledger, first in found}
    for ledger in disk.list(root):
        for name in disk.list(root / ledger) if ledger.isdecimal() else ():
            path = root / ledger / name
            if path.with_suffix(".seg") not in known:
                disk.unlink(path)
