"""Verification of a copy: batches by their checksums at both ends, and where groups stand.

A sample reads the first and the last batch of each partition and some between them, and what the
source holds before and behind them. All batches are read in their order, so that what was left out
at the source, or is at the target twice, is found too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from threading import Event, Lock
from typing import Any, Final, Literal

from router.backends import Backend, Start
from router.errors import SubscriptionNotFoundError, TopicNotFoundError
from router.model import NOT_PARTITIONED, CursorState, Position, Subscription, TopicName
from router.services.copying.acknowledged import Done
from router.services.copying.comparing import (
    Comparison,
    Difference,
    PartitionComparison,
    PartitionEnd,
)
from router.services.copying.groups import GroupSync
from router.services.copying.places import Key, end_key_of, key_of
from router.services.copying.state import CopiedTopic, CopyState

MAX_DIFFERENCES: Final = 1_000
"""Differences that are kept; more are counted."""
SAMPLED_BATCHES: Final = 20
"""Batches of each partition."""
BATCHES_AT_ONCE: Final = 200
MAX_CONCURRENT_PARTITIONS: Final = 4

How = Literal["sample", "all"]


@dataclass(slots=True)
class Verification:
    """What a verification found; `groups` counts those that were compared."""

    how: str
    partitions: list[PartitionComparison] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    more_differences: int = 0
    groups: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def ok(self) -> bool:
        """Return whether there is no difference."""
        return not self.differences

    def differ(self, difference: Difference) -> None:
        """Note a difference; callable from many threads."""
        with self._lock:
            if len(self.differences) < MAX_DIFFERENCES:
                self.differences.append(difference)
            else:
                self.more_differences += 1

    def sentences(self) -> list[str]:
        """Return the differences for people."""
        found = [difference.sentence() for difference in self.differences]
        if self.more_differences:
            found.append(f"and {self.more_differences} more differences")
        return found

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "ok": self.ok,
            "how": self.how,
            "partitions": [asdict(one) for one in self.partitions],
            "differences": [asdict(one) for one in self.differences],
            "more_differences": self.more_differences,
            "groups": self.groups,
        }


@dataclass(slots=True)
class Verifier:
    """Compares what was copied with both ends.

    `timeout` bounds each request, in seconds; `progress` is given the messages compared since.
    Once `stop` is set, the comparison ends with KeyboardInterrupt. `since`: only messages of the
    source published then or later are missed at the target.
    """

    source: Backend
    target: Backend
    state: CopyState
    timeout: float
    progress: Callable[[int], None]
    stop: Event = field(default_factory=Event)
    since: Start | int = Start.EARLIEST
    _lock: Lock = field(default_factory=Lock)

    def run(self, topics: Iterable[CopiedTopic], how: How, *, groups: bool) -> Verification:
        """Compare these topics; raise what reading one of the two ends raises."""
        found, known = Verification(how), list[CopiedTopic]()
        for one in topics:
            if one.done:
                known.append(one)
            else:
                found.differ(Difference(str(one.source), -1, -1, "", "it is not copied"))
        with ThreadPoolExecutor(MAX_CONCURRENT_PARTITIONS, "copy-verify") as pool:
            compare = self._compare_all if how == "all" else self._compare_sample
            work = [one for topic in known for one in self._partitions(topic, found)]
            try:
                for future in [pool.submit(compare, *one) for one in work]:
                    future.result()
            except BaseException:
                self.stop.set()  # the other partitions are not waited for to their ends
                raise
        if groups:
            sync = GroupSync(self.source, self.target, self.state, lambda: known, self.timeout)
            for topic in known:
                found.groups += self._compare_groups(sync, topic, found)
        return found

    def _partitions(
        self, topic: CopiedTopic, found: Verification
    ) -> Iterable[tuple[TopicName, PartitionComparison, Comparison]]:
        try:
            count = self.source.partitions(topic.source, self.timeout)
        except TopicNotFoundError:
            found.differ(Difference(str(topic.source), -1, -1, "", "it is no more at the source"))
            return
        try:
            there = self.target.partitions(topic.target, self.timeout)
        except TopicNotFoundError:
            found.differ(Difference(str(topic.source), -1, -1, "", "it is not at the target"))
            return
        numbers = {*range(count)} if count else {NOT_PARTITIONED}
        for partition in sorted(numbers | {*self.state.partitions(topic.source)}):
            one = PartitionComparison(str(topic.source), str(topic.target), partition)
            found.partitions.append(one)
            number = max(0, partition) if there else NOT_PARTITIONED
            ends = (
                PartitionEnd(self.source, topic.source, partition, self.timeout),
                PartitionEnd(self.target, topic.target, number, self.timeout),
            )
            if partition >= max(1, there):
                what = f"the target has {there} partitions"
                found.differ(Difference(one.topic, partition, -1, "", what))
                continue
            yield topic.source, one, Comparison(*ends, one, found.differ, self.since)

    def _compared(self, count: int) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt
        with self._lock:
            self.progress(count)

    def _compare_all(
        self, topic: TopicName, found: PartitionComparison, comparison: Comparison
    ) -> None:
        batches = self.state.batches(topic, found.partition)
        first, last = None, None
        while some := list(islice(batches, BATCHES_AT_ONCE)):
            found.batches += len(some)
            found.copied += sum(batch.count for batch in some)
            comparison.compare(some, self._compared, last)
            first, last = first or some[0], some[-1]
        comparison.compare_ends(first, last)
        comparison.count_others(first, last)
        found.gone, found.expired = comparison.gone, comparison.expired
        found.others = comparison.others

    def _compare_sample(
        self, topic: TopicName, found: PartitionComparison, comparison: Comparison
    ) -> None:
        found.copied, _ = self.state.copied(topic, found.partition)
        first = next(self.state.batches(topic, found.partition), None)
        last = self.state.last_copied(topic, found.partition)
        comparison.compare_ends(first, last)
        if last is None:
            return
        found.batches = last.sequence + 1
        for sequence in spread(last.sequence):
            batch = next(self.state.batches(topic, found.partition, sequence - 1), None)
            if batch is not None:
                comparison.compare([batch], self._compared)

    def _compare_groups(self, sync: GroupSync, topic: CopiedTopic, found: Verification) -> int:
        """Name the groups that are behind at the target; return how many were compared."""
        compared, name = 0, str(topic.source)
        for group in sync.look(topic):
            states = _cursors(self.source, topic.source, group, self.timeout)
            if not states or any(state.owner for state in states):
                continue
            compared += 1
            there = _cursors(self.target, topic.target, group, self.timeout)
            if not there:
                found.differ(Difference(name, -1, -1, "", f"group {group} is not at the target"))
                continue
            stands = {max(0, one.partition): one for one in there}
            for state in states:
                number = state.partition
                if missing := _num_missing(sync, topic.source, state, stands.get(max(0, number))):
                    what = f"group {group} is behind at the target: {missing} places at least"
                    found.differ(Difference(name, number, -1, "", what))
        return compared


def spread(last: int) -> list[int]:
    """Return the numbers of a sample, the first and the last one among them."""
    if last < SAMPLED_BATCHES:
        return list(range(last + 1))
    return sorted({round(last * step / (SAMPLED_BATCHES - 1)) for step in range(SAMPLED_BATCHES)})


def _cursors(backend: Backend, topic: TopicName, group: str, timeout: float) -> list[CursorState]:
    try:
        return backend.cursors(Subscription(topic, group), timeout)
    except SubscriptionNotFoundError:
        return []


def _num_missing(
    sync: GroupSync, topic: TopicName, state: CursorState, there: CursorState | None
) -> int:
    """Return how many places are acknowledged at the source and not at the target.

    A part of an entry is not looked at, since Apache Pulsar does not tell of them.
    """
    acks, _ = sync.translated(topic, state, Done())
    places = [one for one in acks.alone if one.batch_index < 0]
    if (upto := acks.upto) is not None:
        whole = upto.batch_index < 0 or upto.batch_index + 1 == upto.batch_size
        places.append(upto if whole else replace(upto, entry=upto.entry - 1, batch_index=-1))
    kept, first = sync.first_kept(topic, state.partition)
    done = _Covered(there)
    # Nothing is known of what is not kept any more.
    covered = (one for one in places if one.ledger != kept or one.entry >= first)
    return sum(not done.covers(key_of(one)) for one in covered if one.entry >= 0)


class _Covered:
    """What a group acknowledged on one partition."""

    def __init__(self, state: CursorState | None) -> None:
        mark = None if state is None else state.mark_delete
        self._upto: Key = (-1, -1, -1) if mark is None else end_key_of(mark)
        ranges: Iterable[tuple[Position, Position]] = () if state is None else state.acknowledged
        self._ranges = sorted((key_of(first), end_key_of(last)) for first, last in ranges)

    def covers(self, key: Key) -> bool:
        return key <= self._upto or any(first <= key <= last for first, last in self._ranges)
