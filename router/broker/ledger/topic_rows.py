"""Owns changes of a stored topic, more partitions, other policies; each within a transaction."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Mapping

from router.broker.cursors import Cursor
from router.broker.ledger.rows import SubscriptionRecord, TopicRecord, insert_subscription
from router.model import Policies

Properties = Mapping[str, str]


def grow_topic(
    connection: sqlite3.Connection,
    topic: TopicRecord,
    partitions: int,
    subscriptions: Mapping[str, Properties],
    now_ms: int,
) -> tuple[TopicRecord, list[SubscriptionRecord]]:
    """Give a topic more partitions, and each new one these subscriptions at its beginning.

    In one transaction, so that no partition is ever seen without the subscriptions of the others.
    """
    connection.execute("UPDATE topics SET partitions = ? WHERE id = ?", (partitions, topic.id))
    ids = list(topic.ledger_ids)
    made = []
    for partition in range(topic.partitions, partitions):
        row = connection.execute(
            "INSERT INTO ledgers (topic_id, partition, next_entry, next_index) VALUES (?, ?, 0, 0)",
            (topic.id, partition),
        )
        ids.append(row.lastrowid or 0)
        for name, properties in subscriptions.items():
            record = SubscriptionRecord(
                0, ids[-1], name, dict(properties), now_ms, now_ms, Cursor(), now_ms
            )
            record.id = insert_subscription(connection, record)
            made.append(record)
    return dataclasses.replace(topic, partitions=partitions, ledger_ids=tuple(ids)), made


def save_policies(connection: sqlite3.Connection, topic_id: int, policies: Policies) -> None:
    """Store other policies of a topic."""
    connection.execute(
        "UPDATE topics SET policies = ? WHERE id = ?",
        (json.dumps(dataclasses.asdict(policies)), topic_id),
    )
