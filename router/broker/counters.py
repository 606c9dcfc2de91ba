"""What the node counts for all its workers: metrics, token buckets, empty polls.

All of it is in memory and bounded: what is kept longest without use goes first. A restart of the
broker forgets it, which costs a limit one round of leniency and nothing else.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from router.metrics import Labels, Sample, fits, render
from router.wire.pulsar import pulsar_pb2 as pb

Clock = Callable[[], float]

MAX_SERIES: Final = 20_000
MAX_GAUGES: Final = 1_000
MAX_BUCKETS: Final = 100_000
MAX_EMPTY_POLLERS: Final = 50_000
MAX_EMPTY_POLLS: Final = 1_000
MINUTE: Final = 60.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Counters:
    """The node's metrics and token buckets; `clock` is monotonic, in seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counters: dict[tuple[str, Labels], float] = {}
        self._watched: dict[str, Callable[[], float]] = {}
        self._collectors: list[Callable[[], Awaitable[list[Sample]]]] = []
        self._observed: list[Sample] = []
        self._pushed: dict[Hashable, list[Sample]] = {}
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def inc(self, name: str, labels: Labels = (), value: float = 1) -> None:
        """Add to a counter of the broker's own."""
        self._add((name, labels, value))

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Have a gauge of the broker's own read whenever metrics are shown."""
        self._watched[name] = read

    def observe(self, collect: Callable[[], Awaitable[list[Sample]]]) -> None:
        """Have samples collected whenever metrics are shown; they are as they stand then."""
        self._collectors.append(collect)

    async def refresh(self) -> None:
        """Collect what may take a moment, for `render`."""
        self._observed = [sample for collect in self._collectors for sample in await collect()]

    def push(self, peer: Hashable, pushed: pb.PushMetrics) -> None:
        """Add what a worker counted; its gauges replace those of its last push.

        Samples that this build does not know are left out.
        """
        for sample in _samples(pushed.counters):
            if sample[2] >= 0:
                self._add(sample)
        self._pushed[peer] = _samples(pushed.gauges)[:MAX_GAUGES]

    def gone(self, peer: Hashable) -> None:
        """Forget the gauges of a worker whose connection ended."""
        self._pushed.pop(peer, None)

    def render(self) -> str:
        """Return everything in the Prometheus text format."""
        samples = [(name, labels, v) for (name, labels), v in self._counters.items()]
        samples += [(name, (), read()) for name, read in self._watched.items()]
        samples += self._observed
        for pushed in self._pushed.values():
            samples += pushed
        return render(samples)

    def take_token(self, asked: pb.TakeToken) -> pb.TokenAnswer:
        """Take one token of a bucket, or only look for one; say when there will be one if not."""
        rate = asked.per_minute / MINUTE if 0 < asked.per_minute < math.inf else 0.0
        bucket = self._bucket(asked.bucket, asked.burst, rate)
        if bucket.tokens >= 1:
            bucket.tokens -= not asked.look_only
            return pb.TokenAnswer(granted=True)
        wait = (1 - bucket.tokens) / rate if rate and asked.burst else MINUTE
        return pb.TokenAnswer(granted=False, retry_after_ms=math.ceil(min(wait, 1e9) * 1000))

    def _bucket(self, name: str, burst: int, rate: float) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.pop(name, None) or _Bucket(burst, now)
        self._buckets[name] = bucket
        bucket.tokens = min(burst, bucket.tokens + (now - bucket.at) * rate)
        bucket.at = now
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return bucket

    def _add(self, sample: Sample) -> None:
        name, labels, value = sample
        key = (name, labels)
        if key in self._counters or len(self._counters) < MAX_SERIES:
            self._counters[key] = self._counters.get(key, 0.0) + value


class EmptyPolls:
    """How often each consumer id polled for nothing within the last minute.

    An id that did so too often is let in again after a minute's share, 6 s of 10 polls a minute:
    then the limit holds on average, and no client has to wait for longer than the original's did.
    Until the whole minute is over, which was not taken, clients give up or poll on regardless.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._polls: OrderedDict[Hashable, deque[float]] = OrderedDict()

    def wait(self, poller: Hashable, per_minute: int) -> float | None:
        """Return the seconds until this id may poll for nothing again; None: it may now.

        `per_minute` = 0 is no limit; limits above MAX_EMPTY_POLLS are MAX_EMPTY_POLLS.
        """
        polls = self._polls.get(poller)
        limit = min(per_minute, MAX_EMPTY_POLLS)
        if polls is None or limit == 0 or len(polls) < limit:
            return None
        free = min(polls[-limit] + MINUTE, polls[-1] + MINUTE / limit)
        wait = free - self._clock()
        return wait if wait > 0 else None

    def empty(self, poller: Hashable, per_minute: int) -> None:
        """Count a poll that found nothing; only as many are remembered as the limit needs."""
        if per_minute == 0:
            return
        polls = deque(self._polls.pop(poller, ()), maxlen=min(per_minute, MAX_EMPTY_POLLS))
        polls.append(self._clock())
        self._polls[poller] = polls
        self._prune()

    def delivered(self, poller: Hashable) -> None:
        """Forget the empty polls of an id that found messages."""
        self._polls.pop(poller, None)

    def __len__(self) -> int:
        return len(self._polls)

    def _prune(self) -> None:
        # The first is the one whose last empty poll is the longest ago.
        horizon = self._clock() - MINUTE
        while self._polls:
            poller, polls = next(iter(self._polls.items()))
            if polls[-1] > horizon and len(self._polls) <= MAX_EMPTY_POLLERS:
                return
            del self._polls[poller]


def _samples(pushed: Iterable[pb.Sample]) -> list[Sample]:
    samples = (
        (sample.name, tuple((label.key, label.value) for label in sample.labels), sample.value)
        for sample in pushed
    )
    return [sample for sample in samples if fits(sample) and math.isfinite(sample[2])]
