"""From appends to topics, each of them stored once however often it is published."""

# Theory of operation. An append has a name that means the same rows for ever: the pipeline, the
# sink, the checkpoint (a random id: without it the batches of a new checkpoint, which begin at 0
# again, would be taken for repeats), the batch and the number of its first row.
#
# Where the store drops repeats (`DeduplicatedPublisher`: our broker, Apache Pulsar with
# deduplication), the first three are the producer's name and the rest its sequence id, which grows
# within each partition. The store remembers one number a producer and partition: it does not matter
# how many batches there are, but it forgets a producer that was silent for long (`dedup.window`, or
# Apache Pulsar's own brokerDeduplicationProducerInactivityTimeoutMinutes). A batch whose publishing
# began longer ago than that is refused with a sentence instead of being published twice without
# one.
#
# Where it has transactions (`TransactionalPublisher`: Kafka), a batch is one transaction, which
# commits the batch's number as an offset of a group: a number that is committed is not published
# again.

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar, runtime_checkable

from router.backends import Backend, Batch
from router.clocks.backoff import Backoff, retry
from router.pipelines.sinks.chunks import AppendChunk

T = TypeVar("T")

# Rows of one batch are numbered below this, batches with the bits above.
_ROW_BITS: Final = 32
# How long one attempt takes at most, and at least is given.
_MAX_TRY_SECONDS: Final = 20.0
_MIN_TRY_SECONDS: Final = 1.0
_MIN_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class PublisherIdentity:
    """Whose batches they are: `checkpoint` is the random id of the sink's checkpoint."""

    pipeline: str
    sink: str
    checkpoint: str

    @property
    def name(self) -> str:
        """What the sink is called in the store, whichever checkpoint it has; the name is its own.

        A pipeline's own hyphens are doubled: without that `a-b` with `c` and `a` with `b-c` would
        fence each other, and take each other's batches for their own.
        """
        return f"router-pipeline-{self.pipeline.replace('-', '--')}-{self.sink}"


class NumberedBatches(Protocol):
    """Stores batches whole, and a number once; see `router.backends.kafka.stored_once`."""

    def store(self, number: int, owner: str, appends: Iterable[Batch], timeout: float) -> bool:
        """Store a batch unless its number is; return whether it was stored now."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A backend that stores several appends together or not at all."""

    def numbered(self, name: str) -> NumberedBatches:
        """Return the numbered batches that go under a name."""
        ...


class DeduplicatedPublisher:
    """Publishes the batches of one sink to a store that drops what a producer stored before."""

    def __init__(self, backend: Backend, identity: PublisherIdentity, retry_seconds: float) -> None:
        self._backend = backend
        self._producer = f"{identity.name}-{identity.checkpoint}"
        self._retry_seconds = retry_seconds
        self._one_try = one_try(retry_seconds)

    def publish(self, batch: int, chunks: Callable[[], Iterable[AppendChunk]]) -> None:
        """Publish the appends of a batch that are not stored yet; durable when it returns.

        `chunks` gives them all from the first one on whenever it is called. Failures that may pass
        are waited out (`persist`), each up to `retry_seconds`.
        """
        for append in _appends(chunks(), self._producer, batch):
            persist(partial(self._backend.publish, append, self._one_try), self._retry_seconds)


class TransactionalPublisher:
    """Publishes the batches of one sink to a store with transactions."""

    def __init__(
        self, backend: Transactional, identity: PublisherIdentity, retry_seconds: float
    ) -> None:
        self._batches = backend.numbered(identity.name)
        self._checkpoint = identity.checkpoint
        self._retry_seconds = retry_seconds

    def publish(self, batch: int, chunks: Callable[[], Iterable[AppendChunk]]) -> None:
        """Publish a batch unless it is stored already; see `DeduplicatedPublisher.publish`."""

        def store() -> bool:
            appends = _appends(chunks(), None, batch)
            return self._batches.store(batch, self._checkpoint, appends, self._retry_seconds)

        persist(store, self._retry_seconds)


Publisher = DeduplicatedPublisher | TransactionalPublisher


def one_try(retry_seconds: float) -> float:
    """Return for how many seconds a single call of the store may wait."""
    return min(_MAX_TRY_SECONDS, max(_MIN_TRY_SECONDS, retry_seconds))


def persist(attempt: Callable[[], T], retry_seconds: float) -> T:
    """Return what the attempt returns, repeated for a while where its failure may pass.

    Raises the last failure when it has been failing for longer, and others at once.
    """
    pauses = Backoff(_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
    return retry(attempt, pauses, time.monotonic() + retry_seconds)


def open_publisher(
    backend: Backend, identity: PublisherIdentity, retry_seconds: float
) -> Publisher:
    """Return what publishes a sink's batches to this store."""
    if isinstance(backend, Transactional):
        return TransactionalPublisher(backend, identity, retry_seconds)
    return DeduplicatedPublisher(backend, identity, retry_seconds)


def _appends(chunks: Iterable[AppendChunk], producer: str | None, batch: int) -> Iterator[Batch]:
    for chunk in chunks:
        if chunk.first >> _ROW_BITS:
            raise ValueError(f"batch {batch} has more than {1 << _ROW_BITS} rows")
        sequence = batch << _ROW_BITS | chunk.first
        yield Batch(chunk.topic, chunk.partition, chunk.messages, producer, sequence)
