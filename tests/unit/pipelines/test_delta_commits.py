"""Delta tables without Spark: commits that are tried again, numbers that a merge would round."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from router.pipelines.sinks.delta import MAX_TRIES, scales, tried

CONFLICT = "[DELTA_CONCURRENT_DELETE_READ] a file was deleted by a concurrent operation"


class Commits:
    """Commits of which so many fail."""

    def __init__(self, failures: int, sentence: str = CONFLICT) -> None:
        self.left = failures
        self.tries = 0
        self.sentence = sentence

    def commit(self) -> str:
        self.tries += 1
        if self.tries <= self.left:
            raise PySparkException(self.sentence)
        return "done"


def test_commit_is_tried_again_when_another_came_before() -> None:
    assert tried(Commits(MAX_TRIES - 1).commit) == "done"


@pytest.mark.parametrize(
    ("commits", "tries"), [(Commits(MAX_TRIES), MAX_TRIES), (Commits(1, "disk full"), 1)]
)
def test_commit_fails_when_it_does_not_help(commits: Commits, tries: int) -> None:
    with pytest.raises(PySparkException):
        tried(commits.commit)
    assert commits.tries == tries


def row(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def test_numbers_within_other_types_have_the_scale_of_the_tables_own() -> None:
    cents, parts = DecimalType(9, 3), DecimalType(9, 2)
    given = row(
        a=ArrayType(row(Price=cents, name=StringType(), other=cents)),
        m=MapType(LongType(), ArrayType(DoubleType())),
        b=cents,
        new=cents,
    )
    table = row(
        A=ArrayType(row(price=parts, name=StringType())),
        m=MapType(cents, ArrayType(LongType())),
        b=ArrayType(parts),
    )
    assert list(scales(given, table)) == [
        ("a.Price", cents, 2),
        ("m.key", LongType(), 3),
        ("m.value", DoubleType(), 0),
    ]
