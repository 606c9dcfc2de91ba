"""Owns the opening of a data folder: everything between an existing folder and a store that serves.

It blocks, and runs in one thread before the event loop sees any of it.
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.broker.folder import MARK
from router.broker.storage import database, deleted_rows, metadata, rows
from router.broker.storage.checkpointer import begin_flush, end_flush, write_flush
from router.broker.storage.disk import Disk
from router.broker.storage.faults import FormatError, StoreError, leaves_mark, write_mark
from router.broker.storage.journal import Journal, JournalFiles
from router.broker.storage.options import StoreOptions
from router.broker.storage.partition import Ledger, LedgerContext, TailCache
from router.broker.storage.producer_state import Producers
from router.broker.storage.reading import SegmentReader
from router.broker.storage.recovery import Replay, open_journal, recover
from router.broker.storage.retention import limits_of, roll_age_ms
from router.broker.storage.rows import LedgerRow, Rows, SubscriptionRecord
from router.broker.storage.writing import Limits, SegmentWriter

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

    @classmethod
    def build(cls, folder: Path, options: StoreOptions, disk: Disk) -> StoreContext:
        """Return what a store works with, for the running event loop; no file is opened."""
        files = JournalFiles(disk, folder / "journal", options.journal, options.relaxed)
        limits = Limits(options.segment, options.index_step, options.open_files)
        writer = SegmentWriter(disk, folder / "ledgers", limits)
        readers = ThreadPoolExecutor(_READER_THREADS, "reader")
        reader = SegmentReader(disk, folder / "ledgers")
        parts = LedgerContext(Journal(files, options.relaxed), reader, readers, TailCache())
        return cls(folder, options, disk, files, writer, parts)


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found; `cursors`: those that the metadata does not know as they are."""

    connection: sqlite3.Connection
    boot: int
    rows: Rows
    ledgers: dict[int, Ledger]
    cursors: dict[SubscriptionRecord, None]


def open_folder(context: StoreContext) -> Opened:
    """Recover the folder; leave the mark if it may not be opened again before a repair.

    Raises FormatError for a folder of another format, StoreError otherwise.
    """
    try:
        refuse_mark(context.folder)
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


def refuse_mark(folder: Path) -> None:
    """Raise StoreError if the folder may not be written before a repair."""
    mark = folder / MARK
    if mark.exists():
        reason = mark.read_text(encoding="utf-8", errors="replace").strip()
        raise StoreError(f"it is marked READ-ONLY ({reason}); run `router check --repair`")


def build_ledger(row: LedgerRow, options: StoreOptions, parts: LedgerContext) -> Ledger:
    """Return a ledger as the last checkpoint left it."""
    producers = Producers(options.dedup_window_ms, options.dedup_producers)
    for name, state in row.producers:
        producers.record(name, state)
    ledger = Ledger(row.id, row.topic_id, producers, parts)
    ledger.restore(row.segments, row.next_entry, row.next_index, row.deleted)
    ledger.holes = row.holes
    ledger.topic_epoch = row.topic_epoch
    ledger.terminated = bool(row.terminated)
    return ledger


def _recover(context: StoreContext, connection: sqlite3.Connection) -> Opened:
    found = rows.load(connection)
    options, disk = context.options, context.disk
    ledgers = {
        row.id: build_ledger(row, options, context.ledger_context) for row in found.ledgers.values()
    }
    _remove_unknown_folders(context, ledgers)
    replay = Replay(ledgers, found.subscriptions)

    def roll_ms(ledger: Ledger) -> int:
        return roll_age_ms(limits_of(found.topics[ledger.topic_id].policies, options))

    def relieve() -> None:
        tails = context.ledger_context.tails
        if tails.unflushed_size > options.cache:
            work = begin_flush(tails, roll_ms)
            end_flush(tails, work, write_flush(context.writer, work))
            tails.evict(options.cache)

    context.files.tidy()
    needed = open_journal(disk, context.files, found.journal, closed=found.closed)
    context.files.remove(needed[0] if needed else found.journal)
    number = needed[-1] + 1 if needed else found.journal
    recover(disk, context.files, number, replay, relieve)
    for subscription in found.subscriptions.values():
        if _fit(subscription, ledgers[subscription.ledger_id]):
            replay.cursors[subscription] = None
    clipped = [
        (ledger.id, ledger.next_index)
        for ledger in ledgers.values()
        if ledger.deleted.remove_from(ledger.next_index)
    ]

    def begin(connection: sqlite3.Connection) -> int:
        # Before anything is appended: those numbers are given out again.
        deleted_rows.clip(connection, clipped)
        return rows.next_boot(connection)

    boot = database.transact(connection, disk, begin)
    return Opened(connection, boot, found, ledgers, replay.cursors)


def _fit(subscription: SubscriptionRecord, ledger: Ledger) -> bool:
    """Make the cursor say nothing about entries that are not; return whether it did.

    The metadata may know more of a cursor than the journal had on disk, and in relaxed mode
    acknowledge entries that a power cut took: their ids are given out again.
    """
    clipped = subscription.cursor.clip(ledger.next_entry)
    return skip_holes(subscription, ledger) or clipped


def skip_holes(subscription: SubscriptionRecord, ledger: Ledger) -> bool:
    """Acknowledge entries that are gone; return whether that changed anything."""
    gone = [*((hole.first, hole.last) for hole in ledger.holes), *ledger.gaps()]
    skipped = [subscription.cursor.skip(first, last) for first, last in gone]
    return any(skipped)


def _remove_unknown_folders(context: StoreContext, ledgers: dict[int, Ledger]) -> None:
    """Remove the folders of topics whose deletion was cut short."""
    root = context.folder / "ledgers"
    for name in context.disk.list(root):
        if name.isdecimal() and int(name) not in ledgers:
            context.writer.remove_ledger(int(name))
