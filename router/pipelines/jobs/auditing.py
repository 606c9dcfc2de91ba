"""The books of an audit, computed in Spark: what is published against what is there.

Both sides are tables of (topic, partition, position), joined in full on all three. A position is
ordered by the numbers in its text (`ledger:entry:index`, or Kafka's offset), so every store is
audited alike, and what a store leaves out on purpose, as Kafka's offsets of transaction markers, is
no gap: only a message that is published can be missing.

Gaps are found as islands: over a partition in its order, a missing message belongs to the number of
those before it that are not missing. That is one sort of each partition, which spills to disk. The
driver gets one line a partition, and of each partition no more gaps and repeats than are named. The
alternative, comparing indexes with their neighbours, sees holes in what was archived, but not what
is missing at the ends, and cannot tell a message from a marker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from router.pipelines.jobs.accounts import Account, Span, Twice

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

PLACE: Final = ("topic", "partition")
POSITION: Final = (*PLACE, "position")


def order(position: str = "position") -> Column:
    """Return what sorts positions: the numbers that their text is made of."""
    parts = functions.split(functions.col(position), ":")
    return functions.array(
        *(
            functions.coalesce(functions.get(parts, i).cast("bigint"), functions.lit(-1))
            for i in range(3)
        )
    )


def accounts(
    published: DataFrame, archived: DataFrame, dead: DataFrame, names: int
) -> list[Account]:
    """Return the account of every partition that any side knows, by topic and partition.

    All three have the columns of POSITION. Gaps and repeats are named in order, `names` of each.
    """
    joined = _joined(published, archived, dead).cache()
    try:
        spans, repeats = _spans(joined, names), _repeats(joined, names)
        return [_account(row, spans, repeats) for row in _totals(joined).collect()]
    finally:
        joined.unpersist()


def _joined(published: DataFrame, archived: DataFrame, dead: DataFrame) -> DataFrame:
    """Return each position once, with where it is, and which of the ends it lies behind."""
    there = (
        archived.select(*POSITION, functions.lit(0).alias("is_dead"))
        .unionAll(dead.select(*POSITION, functions.lit(1).alias("is_dead")))
        .groupBy(*POSITION)
        .agg(functions.count("*").alias("copies"), functions.sum("is_dead").alias("dead"))
    )
    sent = published.select(*POSITION).distinct().withColumn("sent", functions.lit(True))
    whole = sent.join(there, list(POSITION), "full").select(
        *POSITION,
        functions.coalesce("sent", functions.lit(False)).alias("sent"),
        functions.coalesce("copies", functions.lit(0)).alias("copies"),
        functions.coalesce("dead", functions.lit(0)).alias("dead"),
        order().alias("place"),
    )
    ends = whole.groupBy(*PLACE).agg(
        functions.min(functions.when(functions.col("sent"), functions.col("place"))).alias("first"),
        functions.max(functions.when(functions.col("copies") > 0, functions.col("place"))).alias(
            "last"
        ),
    )
    column = functions.col
    absent = column("sent") & (column("copies") == 0)
    behind = column("last").isNull() | (column("place") > column("last"))
    unknown = ~column("sent")
    before = column("first").isNull() | (column("place") < column("first"))
    return whole.join(ends, list(PLACE)).select(
        *POSITION,
        "place",
        "sent",
        "copies",
        "dead",
        (absent & ~behind).alias("missing"),
        (absent & behind).alias("waiting"),
        (unknown & before).alias("gone"),
        (unknown & ~before).alias("unknown"),
    )


def _totals(joined: DataFrame) -> DataFrame:
    column, total = functions.col, functions.sum
    flags = ("missing", "waiting", "gone", "unknown")
    return (
        joined.groupBy(*PLACE)
        .agg(
            functions.count_if("sent").alias("published"),
            total(column("copies") - column("dead")).alias("archived"),
            total("dead").alias("dead"),
            total(functions.greatest(column("copies") - 1, functions.lit(0))).alias("repeats"),
            *(functions.count_if(name).alias(name) for name in flags),
        )
        .orderBy(*PLACE)
    )


def _spans(joined: DataFrame, names: int) -> list[Row]:
    """Return the gaps of all partitions, the first `names` of each."""
    return (
        joined.where("sent")
        .withColumn(
            "island",
            functions.expr(
                "count_if(NOT missing) OVER (PARTITION BY topic, partition ORDER BY place)"
            ),
        )
        .where("missing")
        .groupBy(*PLACE, "island")
        .agg(
            functions.min("place").alias("place"),
            functions.expr("min_by(position, place)").alias("first"),
            functions.expr("max_by(position, place)").alias("last"),
            functions.count("*").alias("count"),
        )
        .transform(lambda frame: _named(frame, names))
        .collect()
    )


def _repeats(joined: DataFrame, names: int) -> list[Row]:
    return joined.where("copies > 1").transform(lambda frame: _named(frame, names)).collect()


def _named(frame: DataFrame, names: int) -> DataFrame:
    """Return the first rows of each partition, in order."""
    number = functions.expr("row_number() OVER (PARTITION BY topic, partition ORDER BY place)")
    return frame.withColumn("number", number).where(f"number <= {names}").orderBy(*PLACE, "number")


def _account(row: Row, spans: list[Row], repeats: list[Row]) -> Account:
    place = (row.topic, row.partition)
    return Account(
        topic=row.topic,
        partition=row.partition,
        published=row.published,
        archived=row.archived,
        dead=row.dead,
        gone=row.gone,
        unknown=row.unknown,
        missing=row.missing,
        waiting=row.waiting,
        repeats=row.repeats,
        gaps=tuple(
            Span(one["first"], one["last"], one["count"])
            for one in spans
            if (one.topic, one.partition) == place
        ),
        twice=tuple(
            Twice(one.position, one.copies)
            for one in repeats
            if (one.topic, one.partition) == place
        ),
    )
