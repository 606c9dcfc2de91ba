"""A commit to a Delta table is tried again where another writer's came before, and only there."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from router.pipelines.sinks.delta import MAX_TRIES, tried

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
