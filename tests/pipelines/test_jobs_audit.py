"""An audit's books in Spark, against the same arithmetic with sets."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from router.pipelines.jobs.audit import Account, Twice, accounts
from tests.unit.pipelines.gaps import adds_up, spans

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[str, int, str]


def frame(spark: SparkSession, rows: list[Place]) -> DataFrame:
    return spark.createDataFrame(rows, "topic string, partition int, position string")


def model(published: list[Place], archived: list[Place], dead: list[Place]) -> list[Account]:
    """Return the accounts as a few lines of plain Python find them."""
    found = []
    for topic, partition in sorted({row[:2] for row in [*published, *archived, *dead]}):
        sent, kept, lost = (
            [row[2] for row in rows if row[:2] == (topic, partition)]
            for rows in (published, archived, dead)
        )
        there = Counter([*kept, *lost])
        last = max((order(one) for one in there), default=(-1,))
        first = min((order(one) for one in sent), default=(1 << 60,))
        reached = sorted((one for one in sent if order(one) <= last), key=order)
        gaps = spans(reached, there)
        found.append(
            Account(
                topic,
                partition,
                published=len(sent),
                archived=len(kept),
                dead=len(lost),
                gone=sum(order(one) < first for one in there),
                unknown=sum(order(one) >= first for one in set(there) - set(sent)),
                missing=sum(gap.messages for gap in gaps),
                waiting=len(sent) - len(reached),
                repeats=sum(count - 1 for count in there.values()),
                gaps=tuple(gaps),
                twice=tuple(
                    Twice(one, count)
                    for one, count in sorted(there.items(), key=lambda pair: order(pair[0]))
                    if count > 1
                ),
            )
        )
    return found


def order(position: str) -> tuple[int, ...]:
    return tuple(int(part) for part in position.split(":"))


def positions(kind: str, count: int) -> list[str]:
    """Return positions as a store names them: of batches, or offsets with holes."""
    if kind == "offsets":
        return [str(3 * number) for number in range(count)]
    return [f"{1 + number // 60}:{number % 60 // 3}:{number % 3}" for number in range(count)]


@pytest.mark.timeout(300)
def test_books_name_exactly_what_is_missing_and_twice(spark: SparkSession) -> None:
    chance = random.Random(7)
    published: list[Place] = []
    archived: list[Place] = []
    dead: list[Place] = []
    for partition in range(4):
        kind = "offsets" if partition % 2 else "batches"
        rows = [("orders", partition, name) for name in positions(kind, 150)]
        gone, sent = rows[:20], rows[20:]
        published += sent
        for row in gone + sent[:-10]:
            where = chance.random()
            # Partition 0 is complete; the others lose, repeat, and let records die.
            target = archived if where < 0.8 else dead
            copies = 1 if partition == 0 else chance.choice([0, 0, 1, 1, 1, 1, 1, 1, 2, 3])
            target += [row] * copies
    published += [("silent", 0, name) for name in positions("offsets", 3)]
    archived += [("strange", 1, "7"), ("orders", 9, "8")]
    chance.shuffle(archived)

    found = accounts(frame(spark, published), frame(spark, archived), frame(spark, dead), 1000)

    assert found == model(published, archived, dead)
    assert all(map(adds_up, found))
    balanced = {(a.topic, a.partition): a.balanced(complete=False) for a in found}
    assert balanced[("orders", 0)]
    assert not balanced[("orders", 1)]


@pytest.mark.timeout(300)
def test_names_are_bounded_when_much_is_missing(spark: SparkSession) -> None:
    published = [("orders", 0, str(number)) for number in range(100)]
    archived = [row for row in published if int(row[2]) % 2]
    [found] = accounts(frame(spark, published), frame(spark, archived), frame(spark, []), 5)
    assert found.missing == 50
    assert [gap.first for gap in found.gaps] == ["0", "2", "4", "6", "8"]
    assert found.lines(complete=False)[-1] == "orders[0]: missing 45 more in further gaps"
