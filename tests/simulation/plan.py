"""What a run consists of: its seed, how long it takes, its clients, its faults and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

ALL_FAULTS = (
    "kill",
    "power cut",
    "power cut at an operation",
    "power cut in a start",
    "stop",
    "pause",
    "reset",
    "cut at a byte",
    "silence",
    "partition",
    "slow disk",
    "stalled sync",
    "power cut in a stalled sync",
    "full disk",
    "failed write",
    "no space at a write",
    "power cut in a rewrite",
    "failed rewrite",
    "failed read",
)

BIT_FLIP = "bit flip"
"""Struck in plans of its own: what is damaged need not be delivered."""
DAMAGED = 0.1
"""The share of plans with damage."""
EXCUSED_BY_DAMAGE = frozenset(
    {
        "a deleted message came back",
        "a deleted topic came back",
        "a duplicate",
        "a gap between answers",
        "a gap in an answer",
        "a commit of an earlier generation was taken",
        "a committed message is not there any more",
        "a committed transaction is not there",
        "a copy is not as its source",
        "a message was copied twice",
        "a new message was taken for a duplicate",
        "a new topic has a group of the old one",
        "a new topic has a producer of the old one",
        "a refused commit was seen",
        "a topic forgot a position",
        "a topic forgot a producer",
        "a transaction is not whole",
        "a transaction was seen that was not committed",
        "acknowledged and not delivered",
        "acknowledged messages came again",
        "delivered and never acknowledged",
        "an acknowledged message came again",
        "an entry changed",
        "messages were passed over",
        "not settled after the quiet time",
        "offsets are not dense",
        "order of a key",
        "order of a publisher",
        "the newest value of a key is not there",
        "the beginning is missing",
    }
)
"""What is lost with a damaged journal may be lost; that nothing false is served must hold."""
SUBSCRIPTIONS = ("exclusive", "failover", "shared", "key_shared")
PROTOCOLS = (
    "pulsar",
    "kafka",
    "members",
    "nats",
    "deleters",
    "administrators",
    "renewers",
    "stream_renewers",
    "fetchers",
    "explicit",
    "tables",
    "transactions",
    "pulsar_transactions",
)
MEAN_PAUSES: Final = (2.0, 8.0, 30.0)
LONG_MEAN_PAUSES: Final = (8.0, 30.0, 60.0, 60.0, 120.0, 240.0)
"""Of long plans, most of whose clients have something to do now and then."""
MEAN_FAULT_SECONDS: Final = (20.0, 60.0, 200.0)
LONG_MEAN_FAULT_SECONDS: Final = (60.0, 200.0, 600.0)
LONG_HOURS: Final = 1.0
MIN_DIRTY_RATIOS = (0.01, 0.5)
MIN_LAGS_MS = (0, 0, 60_000)
DELETE_RETENTIONS_MS = (30_000, 300_000)


@dataclass(frozen=True)
class Plan:
    """A run. `topics`: name and number of partitions; clients are numbers of each kind."""

    seed: str
    hours: float = 0.5
    topics: tuple[tuple[str, int], ...] = (("orders", 4), ("audit", 0))
    groups: int = 2
    publishers: int = 4
    pollers: int = 8
    pulsar: int = 1
    """Publishers of that protocol, each with consumers, as of the others."""
    subscriptions: tuple[str, ...] = SUBSCRIPTIONS
    """What each partition of Pulsar's topic is read through."""
    kafka: int = 1
    members: int = 2
    """Of one Kafka group, which reads what all Kafka publishers publish."""
    nats: int = 1
    deleters: int = 1
    """Of messages of a stream, which one looks for; at most one."""
    administrators: int = 1
    renewers: int = 1
    """Of a topic that has messages, which is made again under its name; at most one."""
    stream_renewers: int = 1
    """Of a stream, as of that topic; at most one."""
    fetchers: int = 1
    """Of each topic of the node protocol, as those below."""
    explicit: int = 1
    tables: int = 1
    """Partitions of a compacted topic, each with publishers and readers of its own."""
    transactions: int = 1
    """Pairs of transactional writers; two partitions are written, and copied exactly once."""
    pulsar_transactions: int = 1
    """Pulsar's writers to the same partitions, which its consumers copy, too."""
    table_policies: dict[str, float] = field(default_factory=dict)
    mean_pause: float = 3.0
    fault_seconds: float = 120.0
    """The mean time between two faults."""
    faults: tuple[str, ...] = ALL_FAULTS
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_seed(cls, seed: str, hours: float) -> Plan:
        """Return the plan that a seed stands for."""
        chance, is_long = Random(f"{seed}:plan"), hours >= LONG_HOURS
        topics = [("orders", chance.choice((0, 1, 3, 4, 8)))]
        if chance.random() < 0.6:
            topics.append(("audit", chance.choice((0, 2))))
        retention = chance.choice(("30s", "10m", "7d"))
        # Retention does not wait for groups of Kafka, so that theirs miss what is that old.
        kafka = chance.choice((0, 1, 2)) if retention == "7d" else 0
        faults = tuple(fault for fault in ALL_FAULTS if chance.random() < 0.6)
        if chance.random() < DAMAGED:
            faults = (*faults[:4], BIT_FLIP)
        found = cls(
            seed,
            hours,
            tuple(topics),
            groups=chance.choice((1, 2, 3)),
            publishers=chance.choice((1, 2, 4, 6)),
            pollers=chance.choice((2, 4, 8)),
            pulsar=chance.choice((0, 0, 1, 2)),
            subscriptions=tuple(chance.sample(SUBSCRIPTIONS, chance.choice((1, 2)))),
            kafka=kafka,
            members=chance.choice((0, 2, 4)) if kafka else 0,
            nats=chance.choice((0, 0, 1, 2)),
            administrators=chance.choice((0, 1)),
            fetchers=chance.choice((0, 0, 1, 2)),
            explicit=chance.choice((0, 0, 1, 2)),
            tables=chance.choice((0, 0, 1, 2)),
            table_policies={
                "min_cleanable_dirty_ratio": chance.choice(MIN_DIRTY_RATIOS),
                "min_compaction_lag_ms": chance.choice(MIN_LAGS_MS),
                "delete_retention_ms": chance.choice(DELETE_RETENTIONS_MS),
            },
            mean_pause=chance.choice(LONG_MEAN_PAUSES if is_long else MEAN_PAUSES),
            fault_seconds=chance.choice(LONG_MEAN_FAULT_SECONDS if is_long else MEAN_FAULT_SECONDS),
            faults=faults,
            options={
                "storage.journal": chance.choice(("64K", "256K", "1M")),
                "storage.segment": chance.choice(("64K", "1M")),
                "storage.cache": chance.choice(("64K", "1M")),
                "storage.reserve": "1M",
                "retention.time": retention,
                "broker.ping": chance.choice(("5s", "30s")),
            },
        )
        # Their copies are made of the whole log.
        pairs = chance.choice((0, 1, 2)) if retention == "7d" else 0
        writers = chance.choice((0, 1)) if retention == "7d" else 0
        deleters = chance.choice((0, 0, 1))
        renewers = chance.choice((0, 1)) if retention == "7d" else 0
        stream_renewers = chance.choice((0, 1))
        return replace(
            found,
            transactions=pairs,
            pulsar_transactions=writers,
            deleters=deleters,
            renewers=renewers,
            stream_renewers=stream_renewers,
        )

    @property
    def has_damage(self) -> bool:
        """Return whether bits of what is at rest flip."""
        return BIT_FLIP in self.faults

    def smaller(self) -> list[Plan]:
        """Return plans that do less, each in one respect; those that save most come first."""
        found = [replace(self, hours=self.hours * share) for share in (0.1, 0.5, 0.8)]
        if len(self.faults) > 1:
            half = len(self.faults) // 2
            found += [replace(self, faults=self.faults[:half])]
            found += [replace(self, faults=self.faults[half:])]
            found += [
                replace(self, faults=tuple(one for one in self.faults if one != fault))
                for fault in self.faults
            ]
        elif self.faults:
            found.append(replace(self, faults=()))
        if len(self.topics) > 1:
            found += [replace(self, topics=(topic,)) for topic in self.topics]
        if len(self.subscriptions) > 1:
            found += [replace(self, subscriptions=(kind,)) for kind in self.subscriptions]
        for name in (*PROTOCOLS, "publishers", "pollers", "groups"):
            count: int = getattr(self, name)
            least = 0 if name in PROTOCOLS else 1
            for fewer in sorted({least, count // 2, count - 1}):
                if least <= fewer < count:
                    changed: dict[str, Any] = {name: fewer}
                    found.append(replace(self, **changed))
        return found


@dataclass
class Result:
    """What came of a run: what must not have been, the hash of its trace, and what happened."""

    violations: list[str]
    digest: str
    counts: dict[str, int]
    seconds: float
    lines: list[str] | None = None
