"""Which topics a copy takes, and what has to be made at the target before messages go there.

A topic of the target is one of the copy's only if the copy made it, or if it was empty and has as
many partitions: so messages of others are not mixed with copied ones by mistake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from router.backends import Backend, Deduplicating, IdentifiesTopics
from router.errors import (
    BadRequestError,
    ConflictError,
    NotAllowedError,
    NotSupportedError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.errors.quoting import quoted
from router.model import (
    NOT_PARTITIONED,
    PERSISTENT,
    PartitionStats,
    Position,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.policies import Policies
from router.services.copying.context import CopyContext
from router.services.copying.fidelity import StoreKind
from router.services.copying.places import Key
from router.services.copying.state import CopiedTopic, CopyState

AGAIN = "Delete it at the target, and copy it with another --state."
UNKNOWN_POLICIES = "retention and other policies, which the target decides itself"
PROPERTIES = "properties of topics, which the target does not keep"


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """What tells a topic from another one of its name: when it was made, and its id; "": no id."""

    created_ms: int = 0
    id: str = ""

    def differs(self, other: TopicIdentity) -> bool:
        """Return whether these are certainly two topics.

        Registries may have noted other times for one topic of Kafka.
        """
        if self.id:
            return other.id not in {"", self.id}
        return bool(self.created_ms and other.created_ms) and self.created_ms != other.created_ms


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic to copy: what it is and holds, whether it is to be made, and what gets lost.

    `made`: it is at the target already; `partitions` of the target, if that has fewer.
    """

    topic: CopiedTopic
    info: TopicInfo
    partitions: tuple[PartitionStats, ...]
    made: bool
    lost: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """Return how many messages the source holds of it."""
        return sum(one.messages for one in self.partitions)

    def fences(self) -> dict[int, Key]:
        """Return, by partition, the last place that the source had when this was planned."""
        return {
            one.partition: (one.ledger, one.next_entry - 1, 0)
            for one in self.partitions
            if one.next_entry > 0
        }


def selected_topics(
    source: Backend, patterns: Sequence[str], timeout: float, default: tuple[str, str]
) -> list[TopicInfo]:
    """Return the persistent topics whose local, short or full name matches a pattern.

    No pattern means all of them; `default`: the tenant and namespace of local names.
    """
    found = [info for info in source.list_topics(timeout) if info.topic.domain == PERSISTENT]
    return [info for info in found if _matches(info.topic, patterns, default)]


def _matches(topic: TopicName, patterns: Sequence[str], default: tuple[str, str]) -> bool:
    names = [str(topic), f"{topic.tenant}/{topic.namespace}/{topic.local}"]
    if (topic.tenant, topic.namespace) == default:
        names.append(topic.local)
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


class CopyPlanner:
    """Decides about the topics of the source; `into_existing`: targets may hold messages.

    `refused` has a sentence for each topic that may not be copied.
    """

    def __init__(
        self,
        source: Backend,
        target: Backend,
        state: CopyState,
        timeout: float,
        *,
        kind: StoreKind,
        into_existing: bool = False,
    ) -> None:
        self._kind = kind
        self._source = source
        self._target = target
        self._state = state
        self._timeout = timeout
        self._into_existing = into_existing
        self._capabilities = target.capabilities(timeout)
        self._identities: dict[TopicName, str] = {}
        self._target_ids: dict[TopicName, str] = {}
        self._made: dict[TopicName, TopicIdentity] = {}
        self.refused: dict[TopicName, str] = {}

    def plan(self, infos: Sequence[TopicInfo]) -> list[PlannedTopic]:
        """Return what is to be done with topics; those that may not be copied are `refused`.

        Topics that were deleted meanwhile are left out.
        """
        there = {info.topic: info for info in self._target.list_topics(self._timeout)}
        known = {one.source: one for one in self._state.topics()}
        names = [one.topic for one in infos if one.topic in there]
        self._target_ids = identities(self._target, names, self._timeout)
        # Before they are described: one that is created again meanwhile is seen as another one.
        self._identities |= identities(self._source, [one.topic for one in infos], self._timeout)
        self._check_other_store([one for one in infos if one.topic not in known], there)
        planned = []
        for info in infos:
            with suppress(TopicNotFoundError):
                try:
                    planned.append(
                        self._planned(info, there.get(info.topic), known.get(info.topic))
                    )
                except ConflictError as error:
                    self.refused[info.topic] = str(error)
        return planned

    def _check_other_store(
        self, infos: Sequence[TopicInfo], there: Mapping[TopicName, TopicInfo]
    ) -> None:
        """Raise BadRequestError if both ends are one store, under two names.

        Each end has given its topics ids, or their times of creation, by itself. Apache Pulsar
        shows neither.
        """
        shared = [info for info in infos if info.topic in there]
        if not shared or self._kind is StoreKind.MEMORY:
            return
        here, ids = self._identities, self._target_ids
        if all(
            here.get(info.topic) == ids[info.topic]
            if info.topic in ids
            else 0 < info.created_ms == there[info.topic].created_ms
            for info in shared
        ):
            raise BadRequestError("FROM and TO are the same store: there is nothing to copy")

    def _planned(
        self, info: TopicInfo, there: TopicInfo | None, mine: CopiedTopic | None
    ) -> PlannedTopic:
        ends = {} if mine is None else copied_ends(self._state, mine.source, partitions_of(mine))
        stats = self._source.describe_topic(info.topic, self._timeout)
        # A list of Apache Pulsar has less than a description.
        info = replace(info, partitions=stats.info.partitions)
        topic = CopiedTopic(info.topic, info.topic, info.partitions, mine is not None and mine.done)
        name = info.topic.local
        if there is None and mine is not None and mine.done:
            raise ConflictError(
                f"topic {name} was deleted at the target since it was copied there: copy it again"
                " with another --state, or leave it out with --topics."
            )
        if mine is not None:
            identity = TopicIdentity(info.created_ms, self._identities.get(info.topic, ""))
            check_same(noted(self._state, SOURCE, info.topic), identity, ends, stats)
            self._check_grown(info, mine)
        if there is not None:
            self._check(info, there, mine)
        return PlannedTopic(topic, info, stats.partitions, there is not None, self._lost(info))

    def _check_grown(self, info: TopicInfo, mine: CopiedTopic) -> None:
        """Raise ConflictError for a topic whose only partition has another number now.

        What was copied of it is noted under the former number, and would be copied again.
        """
        if info.partitions and not mine.partitions:
            raise ConflictError(
                f"topic {info.topic.local} has {_counted(info.partitions)} at the source now, and"
                f" had one without a number when it was copied. {AGAIN}"
            )

    def _check(self, info: TopicInfo, there: TopicInfo, mine: CopiedTopic | None) -> None:
        """Raise ConflictError unless messages may be copied into a topic of the target."""
        name = info.topic.local
        has, wants = self._number(there.partitions), self._number(info.partitions)
        grown = mine is not None and 0 < has < wants
        if has != wants and not grown:
            raise ConflictError(
                f"topic {name} has {_counted(info.partitions)} at the source and"
                f" {_counted(there.partitions)} at the target: keys would go to other partitions."
                " Delete it at the target, or leave it out with --topics."
            )
        if mine is not None and mine.done:
            now = TopicIdentity(there.created_ms, self._target_ids.get(info.topic, ""))
            if noted(self._state, TARGET, info.topic).differs(now):
                raise ConflictError(
                    f"topic {name} was deleted and created again at the target since it was"
                    f" copied there. {AGAIN}"
                )
            self._check_kept(mine)
        if mine is not None or self._into_existing:
            return
        stats = self._target.describe_topic(info.topic, self._timeout)
        held = sum(one.messages for one in stats.partitions)
        if held:
            raise ConflictError(
                f"topic {name} holds {held} messages at the target that this copy did not put"
                " there. If an earlier copy did, name its state file with --state; if that is lost,"
                " delete the topic at the target. If they are others' messages, leave it out with"
                " --topics, or copy behind them with --into-existing, which stores again what an"
                " earlier copy stored."
            )

    def _check_kept(self, mine: CopiedTopic) -> None:
        """Raise ConflictError if the target ends before the last message that is copied there.

        It was restored from a backup, and what it lost would be taken for copied.
        """
        # Before the target is described: the copy may go on meanwhile.
        batches = [self._state.last_copied(mine.source, n) for n in partitions_of(mine)]
        stats = self._target.describe_topic(mine.target, self._timeout)
        ends = {max(0, one.partition): one for one in stats.partitions}
        for last in batches:
            end = None if last is None else ends.get(max(0, last.partition))
            if last is None or last.receipt is None or end is None:
                continue
            at = last.receipt.at(last.count - 1)
            # A Kafka that was killed holds back what it has committed until it is marked.
            if at.ledger == end.ledger and at.entry >= end.next_entry + end.undecided:
                raise ConflictError(
                    f"topic {mine.target.local} lacks messages at the target that were copied"
                    f" there: was it restored from a backup? {AGAIN}"
                )

    def _number(self, partitions: int) -> int:
        """Return a number of partitions as the target counts: Kafka's topics have one or more."""
        return max(1, partitions) if self._kind is StoreKind.KAFKA else partitions

    def _lost(self, info: TopicInfo) -> tuple[str, ...]:
        own = replace(info.policies, replicas=None) != Policies()
        return (UNKNOWN_POLICIES,) if own and self._capabilities.policies else ()

    def made_again(self, infos: Sequence[TopicInfo]) -> list[TopicName]:
        """Return those of the topics made here that are other ones at the source now."""
        ids = identities(self._source, list(self._made), self._timeout) if self._made else {}
        return [
            info.topic
            for info in infos
            if (made := self._made.get(info.topic)) is not None
            and made.differs(TopicIdentity(info.created_ms, ids.get(info.topic, "")))
        ]

    def make(self, context: CopyContext, planned: PlannedTopic) -> CopiedTopic:
        """Make a topic at the target, or have it grow; return it as one of the copy."""
        topic, timeout = planned.topic, self._timeout
        self._state.put_topic(topic)
        info, ids = planned.info, self._identities
        self._made[topic.source] = made = TopicIdentity(info.created_ms, ids.get(topic.source, ""))
        note(self._state, SOURCE, topic.source, made)
        if not planned.made:
            info = replace(planned.info, topic=topic.target)
            if self._capabilities.policies:
                info = replace(info, policies=Policies(replicas=info.policies.replicas))
            # A copy that was killed right here made it.
            with suppress(TopicExistsError):
                self._target.create_topic(info, timeout)
        else:
            self._grow(topic)
        if noted(self._state, TARGET, topic.source) == TopicIdentity():
            note(self._state, TARGET, topic.source, self._at_target(topic.target))
        if isinstance(self._target, Deduplicating):
            try:
                self._target.deduplicate(topic.target, timeout)
            except NotAllowedError as error:
                raise NotAllowedError(
                    f"the target does not deduplicate topic {topic.target.local}, and a copy that"
                    f" is interrupted would store messages twice: {error}"
                ) from error
        context.schemas(topic).copy_all()
        done = replace(topic, done=True)
        self._state.put_topic(done)
        self.refused.pop(topic.source, None)
        return done

    def _at_target(self, topic: TopicName) -> TopicIdentity:
        """Return what tells a topic of the target from another one."""
        if identity := identities(self._target, [topic], self._timeout).get(topic, ""):
            return TopicIdentity(id=identity)
        if self._kind is StoreKind.PULSAR:
            return TopicIdentity()  # it shows neither
        return TopicIdentity(self._target.describe_topic(topic, self._timeout).info.created_ms)

    def _grow(self, topic: CopiedTopic) -> None:
        has = self._number(self._target.partitions(topic.target, self._timeout))
        if has >= topic.partitions:
            return
        try:
            self._target.grow_topic(topic.target, topic.partitions, self._timeout)
        except (NotAllowedError, NotSupportedError) as error:
            raise ConflictError(
                f"topic {topic.source.local} has {topic.partitions} partitions at the source now,"
                f" and {has} at the target: {error}"
            ) from error


def identities(
    source: Backend, topics: Sequence[TopicName], timeout: float
) -> dict[TopicName, str]:
    """Return the ids of topics, none of a store that has none."""
    return source.identities(topics, timeout) if isinstance(source, IdentifiesTopics) else {}


def copied_ends(
    state: CopyState, topic: TopicName, partitions: Iterable[int]
) -> dict[int, Position]:
    """Return the last place of the source that a copy notes of each of these partitions.

    A topic is described after that: its other partitions may be copied on at any time.
    """
    newest = (state.newest(topic, partition) for partition in partitions)
    return {batch.partition: batch.last() for batch in newest if batch is not None}


def check_same(
    known: TopicIdentity, now: TopicIdentity, ends: Mapping[int, Position], stats: TopicStats
) -> None:
    """Raise ConflictError for a topic that was made again since it was copied.

    Its places mean other messages now. `ends` are those of `copied_ends`, which were noted before
    the `stats` were taken: a topic that is still the same ends behind them.
    """
    again = known.differs(now)
    for one in stats.partitions:
        last = ends.get(one.partition)
        again |= last is not None and one.ledger == last.ledger and one.next_entry <= last.entry
    if again:
        raise made_again(stats.info.topic)


def made_again(topic: TopicName) -> ConflictError:
    """Return what says that a topic is another one than that which was copied."""
    return ConflictError(
        f"topic {topic.local} was deleted and created again at the source since it was copied."
        f" {AGAIN}"
    )


def partitions_of(topic: CopiedTopic) -> Sequence[int]:
    """Return the numbers of a topic's partitions."""
    return range(topic.partitions) if topic.partitions else (NOT_PARTITIONED,)


SOURCE, TARGET = "", "target "
"""What the facts about the topics of the two ends begin with."""


def noted(state: CopyState, end: str, topic: TopicName) -> TopicIdentity:
    """Return what was noted of a topic when it was made."""
    created_ms, identity = (state.fact(f"{end}{what} {topic}") for what in ("created", "identity"))
    return TopicIdentity(int(created_ms or 0), identity or "")


def note(state: CopyState, end: str, topic: TopicName, identity: TopicIdentity) -> None:
    """Note what tells a topic of one end from another one of its name."""
    state.note(f"{end}created {topic}", str(identity.created_ms))
    state.note(f"{end}identity {topic}", identity.id)


def _counted(partitions: int) -> str:
    return f"{partitions} partitions" if partitions else "no partitions"


def check_patterns(patterns: Sequence[str], found: Sequence[TopicInfo]) -> None:
    """Raise TopicNotFoundError if patterns were given and no topic matches."""
    if patterns and not found:
        raise TopicNotFoundError(
            f"no topic of the source matches {', '.join(map(quoted, patterns))}"
        )
