"""Owns the opening of a data folder: everything between an existing folder and a store that serves.

It blocks, and runs in one thread before the event loop sees any of it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from router.broker.dedup import Producers
from router.broker.folder import MARK
from router.broker.ledger import database, metadata, rows
from router.broker.ledger.disk import Disk
from router.broker.ledger.faults import StoreError, leaves_mark, write_mark
from router.broker.ledger.journal import JournalFiles
from router.broker.ledger.keeper import finish_work, take_work, write_work
from router.broker.ledger.options import StoreOptions
from router.broker.ledger.partition import Ledger, Parts
from router.broker.ledger.recovery import Replay, open_journal, recover
from router.broker.ledger.retention import keep_of, roll_age
from router.broker.ledger.rows import LedgerRow, Rows, SubscriptionRecord
from router.broker.ledger.writing import SegmentWriter


@dataclass(frozen=True, slots=True)
class Ground:
    """The folder to open, and what to open it with."""

    folder: Path
    options: StoreOptions
    disk: Disk
    files: JournalFiles
    writer: SegmentWriter
    parts: Parts


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found; `cursors`: those that the metadata does not know as they are."""

    connection: sqlite3.Connection
    boot: int
    rows: Rows
    ledgers: dict[int, Ledger]
    cursors: dict[SubscriptionRecord, None]


def open_folder(ground: Ground) -> Opened:
    """Recover the folder; raise StoreError, and leave the mark if nobody may try again."""
    try:
        refuse_mark(ground.folder)
        for folder in (ground.folder, ground.folder / "journal", ground.folder / "ledgers"):
            if ground.disk.make_folder(folder):
                ground.disk.sync_folder(folder.parent)
        connection = metadata.connect(ground.folder / "metadata.db", ground.disk)
        try:
            return _recover(ground, connection)
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.Error, StoreError, ValueError) as error:
        ground.files.close()
        ground.writer.close()
        sentence = f"cannot open the data folder {ground.folder}: {error}"
        if leaves_mark(error):
            write_mark(ground.folder, sentence)
        raise StoreError(sentence) from error


def refuse_mark(folder: Path) -> None:
    """Raise StoreError if the folder may not be written before a repair."""
    mark = folder / MARK
    if mark.exists():
        reason = mark.read_text(encoding="utf-8", errors="replace").strip()
        raise StoreError(f"it is marked READ-ONLY ({reason}); run `router check --repair`")


def build_ledger(row: LedgerRow, options: StoreOptions, parts: Parts) -> Ledger:
    """Return a ledger as the last checkpoint left it."""
    producers = Producers(options.dedup_window_ms, options.dedup_producers)
    for name, mark in row.producers:
        producers.record(name, mark)
    ledger = Ledger(row.id, row.topic_id, producers, parts)
    ledger.restore(row.segments, row.next_entry, row.next_index)
    ledger.holes = row.holes
    ledger.topic_epoch = row.topic_epoch
    ledger.terminated = bool(row.terminated)
    return ledger


def _recover(ground: Ground, connection: sqlite3.Connection) -> Opened:
    found = rows.load(connection)
    options, disk = ground.options, ground.disk
    ledgers = {row.id: build_ledger(row, options, ground.parts) for row in found.ledgers.values()}
    _remove_strangers(ground, ledgers)
    replay = Replay(ledgers, found.subscriptions)

    def roll_ms(ledger: Ledger) -> int:
        return roll_age(keep_of(found.topics[ledger.topic_id].policies, options))

    def relieve() -> None:
        tails = ground.parts.tails
        if tails.unflushed_size > options.cache:
            work = take_work(tails, roll_ms)
            finish_work(tails, work, write_work(ground.writer, work))
            tails.evict(options.cache)

    ground.files.tidy()
    needed = open_journal(disk, ground.files, found.journal, closed=found.closed)
    ground.files.remove(needed[0] if needed else found.journal)
    number = needed[-1] + 1 if needed else found.journal
    recover(disk, ground.files, number, replay, relieve)
    for subscription in found.subscriptions.values():
        if _fit(subscription, ledgers[subscription.ledger_id]):
            replay.cursors[subscription] = None
    boot = database.transact(connection, disk, rows.next_boot)
    return Opened(connection, boot, found, ledgers, replay.cursors)


def _fit(subscription: SubscriptionRecord, ledger: Ledger) -> bool:
    """Make the cursor say nothing about entries that are not; return whether it did.

    The metadata may know more of a cursor than the journal had on disk, and in relaxed mode
    acknowledge entries that a power cut took: their ids are given out anew.
    """
    clipped = subscription.cursor.clip(ledger.next_entry)
    return skip_holes(subscription, ledger) or clipped


def skip_holes(subscription: SubscriptionRecord, ledger: Ledger) -> bool:
    """Acknowledge what nobody can be given any more; return whether that changed anything."""
    skipped = [subscription.cursor.skip(hole.first, hole.last) for hole in ledger.holes]
    return any(skipped)


def _remove_strangers(ground: Ground, ledgers: dict[int, Ledger]) -> None:
    """Remove the folders of topics whose deletion was cut short."""
    root = ground.folder / "ledgers"
    for name in ground.disk.list(root):
        if name.isdecimal() and int(name) not in ledgers:
            ground.writer.remove_ledger(int(name))
