"""What `router copy` does beside copying: access rights, what it says when it is level, its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from router.backends import Batch
from router.backends.memory.store import MemoryBackend
from router.cli import copy_run, main, status
from router.cli.copy_ends import End, EndAddress
from router.cli.copy_progress import CopyProgress
from router.cli.copy_report import CopyReport, CopyRequest
from router.cli.options import settings_for
from router.errors import EntryTooLargeError
from router.model import NOT_PARTITIONED, Message, TopicName
from router.node.memory import MemoryNode
from router.services import keys
from router.services.copying.access import AccessCopy
from router.services.copying.state import CopyState
from router.services.copying.verify import Verifier

WAIT = 5.0
ORDERS, OTHER, LATE = map(TopicName.parse, ("orders", "other", "late"))


class Ends:
    """Two stores with their registries; `said` is called with each sentence of a run."""

    def __init__(self, folder: Path) -> None:
        self.backends = MemoryBackend(), MemoryBackend()
        self.nodes = (
            MemoryNode(idle=1.0, empty_polls_per_minute=0),
            MemoryNode(idle=1.0, empty_polls_per_minute=0),
        )
        self.state = folder / "copy.db"
        self.stop = threading.Event()

    def publish(self, end: int, topic: TopicName) -> None:
        self.backends[end].publish(Batch(topic, NOT_PARTITIONED, [Message(b"x")]), WAIT)

    def run(self, **options: Any) -> CopyReport:
        report, settings = CopyReport("a", "b"), settings_for(None, backend__url="memory")
        here, there = (
            End(EndAddress(name, settings, registry=True, folder=None), node, backend)
            for name, node, backend in zip("ab", self.nodes, self.backends, strict=True)
        )
        request = CopyRequest(state=self.state, **options)
        access = AccessCopy(*self.nodes, WAIT)
        with ExitStack() as stack:
            copy_run._Run(here, there, request, report, self.stop, access).run(stack)
        return report


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ends:
    monkeypatch.setattr(copy_run, "TICK_SECONDS", 0.02)
    return Ends(tmp_path)


def when_level(monkeypatch: pytest.MonkeyPatch, do: Callable[[str], None]) -> None:
    """Do something with the line that says that both ends are level."""

    def say(progress: CopyProgress, sentence: str) -> None:
        if sentence.startswith("level"):
            do(sentence)

    monkeypatch.setattr(CopyProgress, "notify", say)


def test_access_rights_are_at_the_target_before_it_is_level(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may serve the target from then on."""
    ends.publish(0, ORDERS)
    here, there = (node.registry for node in ends.nodes)
    here.put(keys.KIND, "K1", b"{}", 0, WAIT)
    found = []
    when_level(monkeypatch, lambda _line: found.append(there.get(keys.KIND, "K1", WAIT)))
    ends.run(follow=True, until_level=True)
    assert [record.value for record in found if record] == [b"{}"]


def test_the_line_that_says_level_names_what_is_not_copied(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    for end in (0, 1):
        ends.publish(end, OTHER)
    ends.publish(0, ORDERS)
    lines: list[str] = []
    when_level(monkeypatch, lines.append)
    ends.run(follow=True, until_level=True)
    assert lines == ["level: 1 messages are copied, but not 1 of the topics: see above"]


def test_a_copy_is_level_but_for_partitions_that_failed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fails before the others are copied, and one once the line was printed."""
    target, publish = ends.backends[1], ends.backends[1].publish

    def refuses(batch: Batch, timeout: float) -> Any:
        if batch.topic != ORDERS:
            raise EntryTooLargeError("the bound is 10")
        return publish(batch, timeout)

    monkeypatch.setattr(target, "publish", refuses)
    monkeypatch.setattr(copy_run, "DISCOVERY_SECONDS", 0.02)
    ends.publish(0, ORDERS)
    ends.publish(0, OTHER)
    lines: list[str] = []

    def level(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            ends.publish(0, LATE)
        else:
            ends.stop.set()

    when_level(monkeypatch, level)
    end = threading.Timer(WAIT, ends.stop.set)
    end.start()
    report = ends.run(follow=True)
    end.cancel()
    assert lines == [
        f"level: 1 messages are copied, but not {failed} of the partitions: see above"
        for failed in (1, 2)
    ]
    assert report.status == status.FAILED


def test_a_topic_that_is_refused_is_named_once(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (0, 1):
        ends.publish(end, OTHER)
    said: list[str] = []
    monkeypatch.setattr(CopyProgress, "notify", lambda _progress, sentence: said.append(sentence))
    report = ends.run()
    assert (said, len(report.failures)) == ([], 1)


def test_a_copy_that_is_stopped_at_its_begin_is_not_level(ends: Ends) -> None:
    ends.publish(0, ORDERS)
    ends.stop.set()
    report = ends.run(verify="all")
    assert (report.level, report.verification) == (False, None)


def test_a_comparison_that_is_stopped_ends_at_once(ends: Ends) -> None:
    ends.publish(0, ORDERS)
    ends.run()
    state = CopyState.open(ends.state, "a", "b")
    ends.stop.set()
    verifier = Verifier(*ends.backends, state, WAIT, lambda _messages: None, ends.stop)
    with pytest.raises(KeyboardInterrupt):
        verifier.run(state.topics(), "all", groups=True)
    state.close()


@pytest.mark.parametrize(
    ("words", "exit_status", "sentence"),
    [
        (("x", "y", "--rate", "-1"), 2, "--rate: expected bytes"),
        (("x", "y", "--since", "yesterday"), 2, "--since: expected earliest"),
        (("x", ""), 2, "cannot be empty"),
        (("", "y"), 2, "cannot be empty"),
        (("memory://", "y"), 78, "in the memory of a process"),
        (("x", "memory://"), 78, "in the memory of a process"),
    ],
)
def test_what_cannot_be_copied_is_refused_with_a_sentence(
    words: tuple[str, ...],
    exit_status: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["copy", *words], env={"ROUTER_CONFIG": ""})
    assert (result.exit_code, sentence in result.output) == (exit_status, True)
    assert not any(tmp_path.iterdir())
