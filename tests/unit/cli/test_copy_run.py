"""A run of `router copy` between stores in memory: what it goes on with, and its exit status."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from router.backends import Batch
from router.backends.memory.store import MemoryBackend
from router.cli import copy, copy_run, status
from router.cli.copy_ends import End, EndAddress
from router.cli.copy_report import CopyReport
from router.cli.copy_run import CopyRequest
from router.cli.options import settings_for
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    EntryTooLargeError,
    NotAllowedError,
)
from router.model import NOT_PARTITIONED, Message, TopicInfo, TopicName
from router.node.memory import MemoryNode

WAIT = 5.0
GROWN, NEW, OTHER = map(TopicName.parse, ("a-grown", "b-new", "c-other"))


class Runs:
    """Two stores, and runs of one copy between them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.target = MemoryBackend(), MemoryBackend()
        self.state = folder / "copy.db"
        self.stop = threading.Event()
        self.patch = monkeypatch
        for name in ("DISCOVERY_SECONDS", "TICK_SECONDS"):
            monkeypatch.setattr(copy_run, name, 0.02)
        monkeypatch.setattr(copy_run, "DISCOVERY_SHARE", 1)

    def run(self, **options: Any) -> CopyReport:
        """Run once, with options of the command; fails if it does not end."""
        report, watch = CopyReport("a", "b"), threading.Timer(WAIT, self.stop.set)
        ends = (self._end("a", self.source), self._end("b", self.target))
        request = CopyRequest(state=self.state, **options)
        watch.start()
        with ExitStack() as stack:
            copy_run._Run(*ends, request, report, self.stop).run(stack)
        assert watch.is_alive(), "it does not end"
        watch.cancel()
        return report

    def _end(self, name: str, backend: MemoryBackend) -> End:
        settings = settings_for(None, backend__url="memory")
        node = MemoryNode(idle=1.0, empty_polls_per_minute=0)
        return End(EndAddress(name, settings, registry=False, folder=None), node, backend)

    def publish(self, topic: TopicName, value: bytes, partition: int = NOT_PARTITIONED) -> None:
        self.source.publish(Batch(topic, partition, [Message(value)]), WAIT)

    def at_target(self, topic: TopicName) -> int:
        """Return how many messages the target holds of a topic, 0: also if there is none."""
        if topic not in {info.topic for info in self.target.list_topics(WAIT)}:
            return 0
        found = self.target.describe_topic(topic, WAIT).partitions
        return sum(one.messages for one in found)

    def when(self, happened: Any, then: Any) -> None:
        """Do something once something has happened, at the next look for new topics."""
        plan = copy_run._Run.plan

        def planning(run: Any, known: Any) -> Any:
            found = plan(run, known)
            if known is not None and happened():
                then()
            return found

        self.patch.setattr(copy_run._Run, "plan", planning)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    runs = Runs(tmp_path, monkeypatch)
    yield runs
    runs.stop.set()


@pytest.mark.parametrize("error", [NotAllowedError("by its own tools"), BadRequestError("no name")])
def test_a_topic_that_the_target_refuses_holds_up_no_other(runs: Runs, error: Exception) -> None:
    def refuses(*given: Any) -> None:
        raise error

    runs.source.create_topic(TopicInfo(GROWN, 2), WAIT)
    runs.run()
    runs.source.grow_topic(GROWN, 3, WAIT)
    runs.publish(OTHER, b"x")
    runs.patch.setattr(runs.target, "grow_topic", refuses)
    report = runs.run()
    assert runs.at_target(OTHER) == 1
    assert report.status == status.FAILED
    assert str(error) in report.failures[0]


def test_a_topic_that_cannot_grow_hides_no_new_one_from_a_copy_that_follows(runs: Runs) -> None:
    """And the copy does not end as if all were copied."""

    def refuses(*given: Any) -> None:
        raise NotAllowedError("by its own tools")

    runs.source.create_topic(TopicInfo(GROWN, 2), WAIT)
    runs.patch.setattr(runs.target, "grow_topic", refuses)
    steps = iter((lambda: runs.source.grow_topic(GROWN, 3, WAIT), lambda: runs.publish(NEW, b"x")))

    def then() -> None:
        next(steps, runs.stop.set if runs.at_target(NEW) else lambda: None)()

    runs.when(lambda: True, then)
    report = runs.run(follow=True)
    assert runs.at_target(NEW) == 1
    assert report.status == status.FAILED
    assert "has 3 partitions at the source now" in report.failures[0]


def test_a_refusal_that_passed_is_no_failure_at_the_end(runs: Runs) -> None:
    """Someone adds the partitions at the target while the copy follows."""
    grow, refused = runs.target.grow_topic, []

    def refuses(*given: Any) -> None:
        refused.append(given)
        if len(refused) == 2:
            runs.patch.setattr(runs.target, "grow_topic", grow)
        raise NotAllowedError("by its own tools")

    runs.source.create_topic(TopicInfo(GROWN, 2), WAIT)
    runs.patch.setattr(runs.target, "grow_topic", refuses)
    steps = iter((lambda: runs.source.grow_topic(GROWN, 3, WAIT),))

    def then() -> None:
        grown = runs.target.partitions(GROWN, WAIT) == 3
        next(steps, runs.stop.set if grown else lambda: None)()

    runs.when(lambda: True, then)
    report = runs.run(follow=True)
    assert (report.failures, report.status) == ([], status.DONE)


def test_a_copy_that_ends_before_it_saw_a_new_topic_is_not_level(runs: Runs) -> None:
    """Status 75: the same command copies it."""
    runs.publish(OTHER, b"x")
    stopped: list[bool] = []

    def then() -> None:
        if not stopped:
            stopped.append(True)
            runs.publish(NEW, b"y")
            runs.stop.set()

    runs.when(lambda: runs.at_target(OTHER) == 1, then)
    report = runs.run(follow=True)
    assert (report.level, report.status) == (False, status.TRY_AGAIN)
    runs.stop.clear()
    assert runs.run().status == status.DONE
    assert runs.at_target(NEW) == 1


def test_a_source_that_cannot_be_listed_at_the_end_is_not_level(runs: Runs) -> None:
    runs.publish(OTHER, b"x")

    def gone(*given: Any) -> None:
        raise BackendUnavailableError("away")

    def then() -> None:
        runs.patch.setattr(runs.source, "list_topics", gone)
        runs.stop.set()

    runs.when(lambda: runs.at_target(OTHER) == 1, then)
    assert runs.run(follow=True).status == status.TRY_AGAIN


def test_a_failed_partition_does_not_keep_a_copy_from_its_end(runs: Runs) -> None:
    """With --until-level all that can be copied is, and the status tells of the rest."""
    publish = runs.target.publish

    def refuses(batch: Batch, timeout: float) -> Any:
        if batch.topic == GROWN:
            raise EntryTooLargeError("the bound is 10")
        return publish(batch, timeout)

    runs.patch.setattr(runs.target, "publish", refuses)
    runs.publish(GROWN, b"too large")
    runs.publish(OTHER, b"x")
    report = runs.run(follow=True, until_level=True)
    assert runs.at_target(OTHER) == 1
    assert report.status not in {status.DONE, status.TRY_AGAIN}
    assert "is too large for the target" in report.failures[0]


def test_topics_that_came_while_it_followed_are_compared_too(runs: Runs) -> None:
    runs.publish(OTHER, b"x")
    steps = iter((lambda: runs.publish(NEW, b"x"),))

    def then() -> None:
        next(steps, runs.stop.set if runs.at_target(NEW) else lambda: None)()

    runs.when(lambda: True, then)
    report = runs.run(follow=True, verify="all")
    assert report.verification is not None
    assert [one.topic for one in report.verification.partitions] == [str(NEW), str(OTHER)]
    assert report.verification.ok


def test_what_was_never_copied_is_a_difference(runs: Runs) -> None:
    """As with a state file that is another one, or is lost; none is made."""
    runs.publish(OTHER, b"x")
    report = runs.run(verify_only=True)
    assert report.status == status.DIFFERS
    assert report.verification is not None
    assert [one.what for one in report.verification.differences] == ["it is not copied"]
    assert not runs.state.exists()
    runs.run()
    assert runs.run(verify_only=True).status == status.DONE
    runs.publish(OTHER, b"later")
    report = runs.run(verify_only=True)
    assert report.status == status.DIFFERS
    assert any("holds 1 message behind the last" in line for line in report.lines())
    runs.run()
    runs.publish(NEW, b"x")
    assert runs.run(verify_only=True).status == status.DIFFERS


@pytest.mark.parametrize("since", ["latest", "4102444800000", "2999-01-01T00:00Z"])
def test_a_time_to_come_is_refused(since: str) -> None:
    """It would copy nothing, and nothing of it later."""
    done = CliRunner().invoke(copy.command, ["from", "to", "--since", since])
    assert done.exit_code == 2
    assert "--since is a time: nothing was published later than now." in done.output


@pytest.mark.parametrize(("level", "status"), [(False, 75), (True, 0)])
def test_a_copy_that_was_stopped_says_so_beside_its_status(level: bool, status: int) -> None:
    report = CopyReport("a", "b", messages=1, level=level)
    said = "stopped before everything was copied: run the same command again"
    assert (report.status, said in report.lines()) == (status, not level)
