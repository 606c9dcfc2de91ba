"""Compares what topics hold with what an archive and dead letters have of it, by position.

An account says of one partition how many messages there are, which are missing, and which are there
twice. It is computed in Spark, what is published against what is there. Both sides are tables of
(topic, partition, position), joined in full on all three. A position is ordered by the numbers in
its text (`ledger:entry:index`, or Kafka's offset), so every store is audited alike, and what a
store leaves out on purpose, as Kafka's offsets of transaction markers, is no gap: only a message
that is published can be missing.

Gaps are found as islands: over a partition in its order, a missing message belongs to the number of
those before it that are not missing. That is one sort of each partition, which spills to disk. The
driver gets one line a partition, and of each partition no more gaps and repeats than are named. The
alternative, comparing indexes with their neighbours, sees holes in what was archived, but not what
is missing at the ends, and cannot tell a message from a marker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession, functions

from router.errors import SettingError, TopicNotFoundError
from router.pipelines.declaration import DEAD_SUFFIX
from router.pipelines.formats import PROPERTY
from router.pipelines.jobs.options import JobContext, JobOptions
from router.pipelines.source import frame, row_names

PLACE: Final = ("topic", "partition")
POSITION: Final = (*PLACE, "position")


def audit(context: JobContext, options: JobOptions) -> bool:
    """Say each partition's account; return whether all are balanced, and nothing was left out.

    The archive is looked at before the topics: what comes meanwhile waits, and is not missing.
    """
    topics = options.texts("topics")
    named = row_names(context.pipeline.source, topics)
    with archive(context.spark, options) as rows:
        archived = rows.select(*POSITION).where(functions.col("topic").isin(*named))
    dead = _dead(context, options).where(functions.col("topic").isin(*named))
    found = accounts(_messages(context, topics), archived, dead, int(options.number("names")))
    complete = options.flag("complete")
    for account in found:
        for line in account.lines(complete=complete):
            context.notify(line)
    return all(account.balanced(complete=complete) for account in found)


def _messages(context: JobContext, topics: tuple[str, ...]) -> DataFrame:
    """Return what the store holds of topics now, from the first message."""
    source = replace(
        context.pipeline.source, topics=topics, pattern="", format="bytes", starting="earliest"
    )
    return frame(context.spark, source, False)


@contextmanager
def archive(spark: SparkSession, options: JobOptions) -> Iterator[DataFrame]:
    """Yield the rows of an archive; raise SettingError if Spark finds that it is none."""
    path = options.text("archive")
    try:
        yield spark.read.format(options.text("format")).load(path)
    except AnalysisException as error:
        first = str(error).strip().partition("\n")[0]
        raise SettingError(f"{path} is no archive: {first}") from error


def _dead(context: JobContext, options: JobOptions) -> DataFrame:
    """Return which messages the dead letters are of; the topics that are not there have none."""
    listed = options.texts("dead_letters")
    named = listed or tuple(f"{topic}{DEAD_SUFFIX}" for topic in options.texts("topics"))
    topics = tuple(name for name in named if _there(context, name))
    if listed and topics != listed:
        raise SettingError(f"there is no topic {', '.join(sorted(set(listed) - set(topics)))}")
    if not topics:
        empty = "topic string, partition int, position string"
        return context.spark.createDataFrame([], empty)
    dead_letters = _messages(context, topics)
    return dead_letters.select(
        *(
            functions.col("properties")[f"{PROPERTY}{name}"].cast(kind).alias(name)
            for name, kind in (("topic", "string"), ("partition", "int"), ("position", "string"))
        )
    )


def _there(context: JobContext, name: str) -> bool:
    settings = context.settings
    try:
        context.backend.partitions(settings.topic(name), settings.seconds("backend.timeout"))
    except TopicNotFoundError:
        return False
    return True


class PartitionGap(NamedTuple):
    """Neighbours in a partition, both ends included; `first` and `last` are positions."""

    first: str
    last: str
    messages: int

    def __str__(self) -> str:
        return (
            self.first if self.messages == 1 else f"{self.first} to {self.last} ({self.messages})"
        )


class Twice(NamedTuple):
    """A position that is stored more than once, over the archive and the dead letters."""

    position: str
    copies: int


@dataclass(frozen=True, slots=True)
class Account:
    """One partition's books. All counts are messages; `archived` and `dead` count repeats too.

    `waiting`: published behind the last that was archived or is a dead letter: they may be under
    way. `gone`: archived, and older than all that the topic still holds, which retention explains.
    `unknown`: archived, but not in the topic where it should be: it is another topic's archive.
    """

    topic: str
    partition: int
    published: int = 0
    archived: int = 0
    dead: int = 0
    gone: int = 0
    unknown: int = 0
    missing: int = 0
    waiting: int = 0
    repeats: int = 0
    gaps: tuple[PartitionGap, ...] = ()
    twice: tuple[Twice, ...] = ()

    def balanced(self, *, complete: bool) -> bool:
        """Tell whether nothing is missing and nothing twice; `complete`: nothing may wait."""
        wrong = self.missing or self.repeats or self.unknown
        return not (wrong or (complete and self.waiting))

    def lines(self, *, complete: bool) -> list[str]:
        """Return the account for people: a line, and one more for each gap and repeat."""
        verdict = "complete" if self.balanced(complete=complete) else "NOT COMPLETE"
        place = f"{self.topic}[{self.partition}]"
        found = [
            f"{place}: {verdict}: published {self.published} = archived {self.archived}"
            f" + dead {self.dead} - repeats {self.repeats} - gone {self.gone}"
            f" - unknown {self.unknown} + missing {self.missing} + waiting {self.waiting}"
        ]
        found += [f"{place}: missing {gap}" for gap in self.gaps]
        named = sum(gap.messages for gap in self.gaps)
        if named < self.missing:
            found.append(f"{place}: missing {self.missing - named} more in further gaps")
        found += [f"{place}: {one.position} is there {one.copies} times" for one in self.twice]
        counted = sum(one.copies - 1 for one in self.twice)
        if counted < self.repeats:
            found.append(f"{place}: {self.repeats - counted} more repeats")
        return found


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
    after_last = column("last").isNull() | (column("place") > column("last"))
    unknown = ~column("sent")
    before = column("first").isNull() | (column("place") < column("first"))
    return whole.join(ends, list(PLACE)).select(
        *POSITION,
        "place",
        "sent",
        "copies",
        "dead",
        (absent & ~after_last).alias("missing"),
        (absent & after_last).alias("waiting"),
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
            PartitionGap(one["first"], one["last"], one["count"])
            for one in spans
            if (one.topic, one.partition) == place
        ),
        twice=tuple(
            Twice(one.position, one.copies)
            for one in repeats
            if (one.topic, one.partition) == place
        ),
    )
