"""One run of `router copy`: what is opened, planned, copied, synced and compared, in that order."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from router import log
from router.backends import Start
from router.cli.copy_ends import End, address, check_apart, is_new, opened, opened_empty, state_file
from router.cli.copy_progress import CopyProgress
from router.cli.copy_report import CopyReport, CopyRequest, left_out
from router.errors import PublishRefusedError, RouterError, SettingError
from router.errors.quoting import quoted
from router.model import TopicName
from router.services.copying.access import AccessCopy
from router.services.copying.context import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_PULSAR_MESSAGES,
    CopyContext,
    CopyOptions,
    Figures,
    Throttle,
    is_passing,
    not_made,
)
from router.services.copying.copier import PartitionCopier
from router.services.copying.fidelity import StoreKind
from router.services.copying.groups import GroupReport, GroupSync
from router.services.copying.plan import (
    CopyPlanner,
    PlannedTopic,
    check_patterns,
    made_again,
    partitions_of,
    selected_topics,
)
from router.services.copying.state import CopiedTopic, CopyState

__all__ = ["CopyRequest", "run"]

STREAM_RECORDS: Final = "nats-stream"
"""The records of the registry that say which topics clients configured as streams."""
TICK_SECONDS: Final = 0.5
GROUPS_SECONDS: Final = 1.0
DISCOVERY_SECONDS: Final = 5.0
DISCOVERY_SHARE: Final = 20
"""Looking for new topics takes this part of the time at most."""
LAG_NOTICE_SECONDS: Final = 3.0
"""For so long nothing is said of what is behind for a moment."""


def run(source: str, target: str, request: CopyRequest, stop: threading.Event) -> CopyReport:
    """Copy as asked and return what was done; raise what opening and planning raise."""
    ends = address(source), address(target)
    report = CopyReport(ends[0].name, ends[1].name, dry_run=request.dry_run)
    log.configure(ends[1].settings.text("log.level"), ends[1].settings.text("log.format"))
    check_apart(*ends)
    if is_new(ends[0]):
        raise SettingError(f"{quoted(source)}: there is no data of a router in {ends[0].folder}")
    same = ends[0].name == ends[1].name
    with ExitStack() as stack:
        here = opened(ends[0], stack)
        empty = is_new(ends[1]) and request.changes_nothing
        there = opened_empty(ends[1], stack) if empty else opened(ends[1], stack)
        access = None
        if request.access and all(end.registry for end in ends) and not request.verify_only:
            access = AccessCopy(here.node, there.node, there.timeout, same_store=same)
        if not same:
            _Run(here, there, request, report, stop, access).run(stack)
        if access is not None:
            report.access = access.copy(apply=not request.dry_run)
            report.failures += report.access.failures
    return report


class _Run:
    """The topics of one run, what is asked for, and what is shown of it."""

    def __init__(
        self,
        here: End,
        there: End,
        request: CopyRequest,
        report: CopyReport,
        stop: threading.Event,
        access: AccessCopy | None = None,
    ) -> None:
        self._here, self._there = here, there
        self.request = request
        self._report = report
        self._stop = stop
        self._access = access
        self.progress = CopyProgress()
        self._figures = Figures(self.progress.notify)
        self._topics: set[TopicName] = set()
        self.made_again: list[TopicName] = []
        self._timeout = max(here.timeout, there.timeout)

    def run(self, stack: ExitStack) -> None:
        """Copy, or say what would be copied."""
        request, report = self.request, self._report
        path = request.state or state_file(self._here.address, self._there.address)
        report.state = str(path)
        if request.changes_nothing and not path.exists():
            path = Path(stack.enter_context(TemporaryDirectory())) / path.name
        state = CopyState.open(path, report.source, report.target)
        stack.callback(state.close)
        self.planner = CopyPlanner(
            self._here.backend,
            self._there.backend,
            state,
            self._timeout,
            kind=self._there.kind(),
            into_existing=request.into_existing,
        )
        planned = self.plan(None)
        report.streams = self._streams(planned)
        self._describe(planned, state)
        if request.changes_nothing:
            report.failures += self.planner.refused.values()
        else:
            self._copy(planned, state, stack)
        if request.follow:
            self._stop.clear()  # it ended the copy, and what follows may be stopped as well
        if (request.verify or request.verify_only) and not self._stop.is_set():
            self._verify(state)

    def plan(self, known: Mapping[str, int] | None) -> list[PlannedTopic]:
        """Return the topics to copy that are new, or have more partitions than are known.

        None: all of them; raises TopicNotFoundError if there is none of the names that are given.
        """
        settings = self._here.address.settings
        default = settings.text("names.tenant"), settings.text("names.namespace")
        patterns = self.request.patterns
        infos = selected_topics(self._here.backend, patterns, self._timeout, default)
        if known is None:
            check_patterns(patterns, infos)
            known = {}
        self.made_again = self.planner.made_again(infos)
        new = [info for info in infos if known.get(str(info.topic), -1) < info.partitions]
        planned = self.planner.plan(new)
        self._topics |= {one.topic.source for one in planned}
        return planned

    def _describe(self, planned: list[PlannedTopic], state: CopyState) -> None:
        shortest = self._here.address.settings.shortest_name
        for one in planned:
            done = sum(
                state.copied(one.topic.source, number)[0] for number in partitions_of(one.topic)
            )
            self._report.before += done
            self.progress.total += max(0, one.messages - done)
            for what in one.lost:
                self._figures.lost(what)
            self._report.topics.append(
                {
                    "name": shortest(one.topic.source),
                    "partitions": one.topic.partitions,
                    "messages": one.messages,
                    "copied_before": done,
                    "does": "goes on" if done else "is there" if one.made else "is made",
                }
            )
        self._report.losses = dict(self._figures.losses)

    def _streams(self, planned: list[PlannedTopic]) -> list[str]:
        """Return which of the topics clients configured as streams of JetStream at the source."""
        here = self._here
        if here.kind() is not StoreKind.EMBEDDED or not here.address.registry:
            return []
        records = here.node.registry.list(STREAM_RECORDS, self._timeout)
        configured = {record.name for record in records}
        topics = [one.topic.source for one in planned if str(one.topic.source) in configured]
        return [here.address.settings.shortest_name(topic) for topic in topics]

    def _copy(self, planned: list[PlannedTopic], state: CopyState, stack: ExitStack) -> None:
        request, report = self.request, self._report
        workers = 4
        pool = stack.enter_context(ThreadPoolExecutor(workers, "copy-ahead"))
        kind = self._there.kind()
        options = CopyOptions(
            request.rate,
            request.since,
            request.follow,
            timeout=self._timeout,
            workers=workers,
            batch_messages=MAX_PULSAR_MESSAGES if kind is StoreKind.PULSAR else MAX_BATCH_MESSAGES,
        )
        context = CopyContext(
            self._here.backend,
            self._there.backend,
            kind,
            state,
            options,
            self._figures,
            Throttle(request.rate, self._stop),
            pool,
            self._stop,
        )
        copier = PartitionCopier(context, self._there.max_batch(MAX_BATCH_BYTES))
        following = _Following(self, context, copier, state)
        began = time.monotonic()
        try:
            begun = following.begin(planned)
            copier.run(following.tick, TICK_SECONDS)
            report.level = begun and copier.level and not following.lacks_topics()
            following.sync(last=True)
        finally:
            self.progress.end()
            report.seconds = time.monotonic() - began
            figures = self._figures
            report.messages, report.size = figures.messages, figures.bytes
            report.losses = dict(figures.losses)
        failures = copier.failures
        sentences = [str(failure) for failure in failures]
        report.failures += dict.fromkeys([*sentences, *self.planner.refused.values()])
        # What stays comes first: running the command again does not mend that.
        report.error = min(failures, key=is_passing, default=None)
        report.groups = following.groups
        if following.groups is not None:
            report.failures += following.groups.failures

    def _verify(self, state: CopyState) -> None:
        from router.services.copying.verify import How, Verifier  # noqa: PLC0415 - not every copy

        known = {one.source: one for one in state.topics()}
        names = sorted(self._topics, key=str)
        topics = [known.get(name, CopiedTopic(name, name, 0)) for name in names]
        self.progress.restart(
            sum(state.copied(t.source, n)[0] for t in topics for n in partitions_of(t))
        )
        verifier = Verifier(
            self._here.backend,
            self._there.backend,
            state,
            self._timeout,
            self.progress.advance,
            self._stop,
            Start.EARLIEST if self.request.since is None else self.request.since,
        )
        how: How = "all" if self.request.verify == "all" else "sample"
        self._report.verification = verifier.run(topics, how, groups=self.request.groups)
        self.progress.end()

    def groups(self, state: CopyState, topics: dict[str, CopiedTopic]) -> GroupSync | None:
        """Return what moves groups, None: the options leave groups out."""
        if not self.request.groups:
            return None
        here, there = self._here.backend, self._there.backend
        return GroupSync(here, there, state, lambda: list(topics.values()), self._timeout)

    def copy_access(self) -> None:
        """Copy who may do what, as a node may serve the target before the copy ends."""
        if self._access is not None:
            self._access.copy(apply=True)

    def make(self, context: CopyContext, planned: PlannedTopic) -> CopiedTopic | None:
        """Make a topic at the target, or have it grow; None: the target refuses it."""
        try:
            return self.planner.make(context, planned)
        except RouterError as error:
            if isinstance(error, PublishRefusedError) and is_passing(error):
                raise not_made(planned.topic.target, error) from error
            if is_passing(error):
                raise
            self.planner.refused[planned.topic.source] = str(error)
            return None


class _Following:
    """What is done beside copying: groups, new topics, progress, and saying that all is level."""

    def __init__(
        self, run: _Run, context: CopyContext, copier: PartitionCopier, state: CopyState
    ) -> None:
        self._run = run
        self._context = context
        self._copier = copier
        self._topics: dict[str, CopiedTopic] = {}
        self._sync = run.groups(state, self._topics)
        self.groups: GroupReport | None = None
        now = time.monotonic()
        self._groups_at = now + GROUPS_SECONDS
        self._discover_at = now + DISCOVERY_SECONDS
        self._left: str | None = None  # what "level" was said with, None: it is not level
        self._level_at = now
        self._refused: set[TopicName] = set()

    def add(self, planned: PlannedTopic) -> None:
        """Make a topic and copy it; of a known one copy what it grew by."""
        if (topic := self._run.make(self._context, planned)) is None:
            return
        known = self._topics.get(str(topic.source))
        self._topics[str(topic.source)] = topic
        if known is None:
            self._copier.add(topic, planned.fences())
        elif topic.partitions > known.partitions:
            self._copier.add(topic, planned.fences(), known.partitions)

    def begin(self, planned: Sequence[PlannedTopic]) -> bool:
        """Make all topics, with their groups and rights; return whether it was not stopped."""
        for one in planned:
            if self._context.stop.is_set():
                return False
            self.add(one)
        if self._run.request.follow:
            self._report_refused()  # else it is said at the end, which is soon
        # Behind the topics: one that is created takes over no rights that are there already.
        self._run.copy_access()
        self.sync(last=False)
        return True

    def sync(self, *, last: bool) -> None:
        """Move groups; what fails is in the report."""
        if self._sync is None:
            return
        try:
            found = self._sync.sync(last=last)
        except RouterError as error:
            self._context.figures.notify("groups", f"groups are not moved now: {error}")
            if last:
                raise
            return
        before = self.groups
        self.groups = found
        if before is not None:
            self.groups.synced += before.synced

    def tick(self, level: bool) -> None:
        """Do what is due; called every half second, and as soon as all partitions are level."""
        figures, now = self._context.figures, time.monotonic()
        self._run.progress.show(figures.messages, figures.bytes)
        if not self._run.request.follow:
            return
        if now >= self._groups_at or (level and self._left is None):
            self.sync(last=False)
            self._groups_at = time.monotonic() + GROUPS_SECONDS
        if now >= self._discover_at:
            began = time.monotonic()
            self._discover()
            took = time.monotonic() - began
            self._discover_at = began + max(DISCOVERY_SECONDS, took * DISCOVERY_SHARE)
        self._announce(level)
        if level and self._run.request.until_level:
            self._context.stop.set()

    def _announce(self, level: bool) -> None:
        now, messages = time.monotonic(), self._context.figures.messages
        if level:
            self._level_at = now
            left = left_out(len(self._run.planner.refused), len(self._copier.failures))
            if left != self._left:
                self._left = left
                self._run.progress.notify(f"level: {messages:,} messages are copied{left}")
        elif self._left is not None and now - self._level_at > LAG_NOTICE_SECONDS:
            self._left = None
            self._run.progress.notify("behind: not all that the source held is copied yet")

    def _discover(self) -> None:
        """Copy topics and partitions that are new at the source."""
        for topic in self._copier.forget_gone():
            # If it is there again it is planned as a new one: copied, or refused with a sentence.
            self._topics.pop(str(topic), None)
        try:
            for one in self._run.plan(self._partitions()):
                self.add(one)
            for topic in self._run.made_again:
                self._topics.pop(str(topic), None)
                self._copier.refuse(topic, made_again(topic))
            self._report_refused()
            self._run.copy_access()
        except RouterError as error:
            sentence = f"new topics and access rights are not looked for now: {error}"
            self._context.figures.notify("discovery", sentence)

    def _report_refused(self) -> None:
        for name, sentence in self._run.planner.refused.items():
            if name not in self._refused:
                self._refused.add(name)
                self._run.progress.notify(sentence)

    def lacks_topics(self) -> bool:
        """Return whether topics came since they were looked for last, or that is not known."""
        if not self._run.request.follow:
            return False
        try:
            planned = self._run.plan(self._partitions())
        except RouterError:
            return True
        return any(one.topic.source not in self._run.planner.refused for one in planned)

    def _partitions(self) -> dict[str, int]:
        return {name: one.partitions for name, one in self._topics.items()}
