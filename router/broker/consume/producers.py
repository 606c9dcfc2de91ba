"""Owns the producers of a partition: their names, exclusive access, and the queue for it.

Theory of operation. Names are unique within a partition, so that deduplication means something. One
producer may hold the partition for itself. It is given the next *topic epoch*, which is on disk
before the producer may begin. A producer that comes back with an older one learns that another held
the partition meanwhile, so that what it believes about the topic is out of date.

`add` decides at once; `hold` waits for the disk. No other producer can come in between, because the
holder is in the table from the start. Producers that wait hold no task and no timer: they are in a
queue, and one that leaves calls the next (`ProducerLink.producer_turn`).

Producers that are fenced are closed like those of a deleted topic: their clients open them again
and are then refused. Apache Pulsar does not notify them, and closes the connection, with everything
else that uses it, when the fenced producer next sends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from router.broker.consume.consumer import ConsumerFlow
from router.errors import BadRequestError, RouterError, TooManyRequestsError, TopicTerminatedError

MAX_WAITING_PRODUCERS: Final = 1_000
MAX_EPOCH: Final = 2**62


class NameBusyError(Exception):
    """Another producer of this partition has the name, or the partition for itself."""


class ProducerFencedError(Exception):
    """Another producer has, had or wants the partition for itself."""


class ProducerAccess(IntEnum):
    """How a producer shares its partition, numbered as in the Pulsar protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerLink(Protocol):
    """The connection of a producer. No call waits."""

    def producer_closed(self, producer: Producer) -> None:
        """Notify the client that the broker closed its producer."""
        ...

    def producer_turn(self, producer: Producer) -> None:
        """Learn that a producer that waited is the holder now; call `hold` and then begin."""
        ...

    def producer_failed(self, producer: Producer, failure: Exception) -> None:
        """Notify the client that its producer, which waits, is refused."""
        ...

    def probe(self) -> None:
        """Check that the client responds, and close the connection if it does not."""
        ...


@dataclass(slots=True, eq=False)
class Producer:
    """A client's producer; `generated` names are the broker's own choice, and unique.

    `topic_epoch` is what the client believes, if it held the partition before; from `add` on it is
    what the producer has.
    """

    link: ProducerLink
    producer_id: int
    name: str
    epoch: int
    generated: bool
    deduplicated: bool
    access: ProducerAccess = ProducerAccess.SHARED
    topic_epoch: int | None = None
    schema_version: bytes = b""
    # Milliseconds since 1970.
    since_ms: int = 0
    # What the client says of it, for statistics.
    metadata: Mapping[str, str] = field(default_factory=dict)
    flow: ConsumerFlow = field(default_factory=ConsumerFlow)


class Epochs(Protocol):
    """The topic epoch of a partition, and whether it accepts no more entries."""

    topic_epoch: int | None
    terminated: bool


class ProducerTable:
    """The producers of a partition, and those that wait for exclusive access.

    `save_epoch` returns when the epoch of `epochs` is durable, or raises StoreError.
    """

    def __init__(self, epochs: Epochs, save_epoch: Callable[[], Awaitable[None]]) -> None:
        self._epochs = epochs
        self._save_epoch = save_epoch
        self._producers: dict[str, Producer] = {}
        self._holder: Producer | None = None
        self._waiting: dict[Producer, None] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self._producers.values()))

    def add(self, producer: Producer) -> bool:
        """Add a producer; return whether it may begin, and does not have to wait.

        One that is not shared must then `hold` before it begins. Raises NameBusyError,
        ProducerFencedError, TopicTerminatedError, TooManyRequestsError, BadRequestError.
        """
        if self._epochs.terminated:
            raise TopicTerminatedError
        if producer.access is ProducerAccess.SHARED:
            self._add_shared(producer)
            return True
        self._check_epoch(producer)
        if producer.access is ProducerAccess.EXCLUSIVE_WITH_FENCING:
            self.close_all(ProducerFencedError("Fenced out"))
        elif self._succeeds_holder(producer):
            self._replace(self._producers[producer.name])
        elif self._producers or self._waiting:
            return self._queue(producer)
        self._grant(producer)
        return True

    async def hold(self, producer: Producer) -> None:
        """Return when the topic epoch of the holder is on disk.

        Raises ProducerFencedError if it is not the holder any more, StoreError.
        """
        await self._save_epoch()
        if self._holder is not producer:
            raise ProducerFencedError("Fenced out")

    def remove(self, producer: Producer) -> None:
        """Free a producer's name, or its place in the queue."""
        if self._producers.get(producer.name) is producer:
            del self._producers[producer.name]
        self._waiting.pop(producer, None)
        if self._holder is producer:
            self._holder = None
        self._call_next()

    def close_all(self, failure: Exception) -> None:
        """Close all producers; those that wait are refused with the failure."""
        producers, waiting = list(self._producers.values()), list(self._waiting)
        self._producers.clear()
        self._waiting.clear()
        self._holder = None
        for producer in producers:
            producer.link.producer_closed(producer)
        for producer in waiting:
            producer.link.producer_failed(producer, failure)

    def _add_shared(self, producer: Producer) -> None:
        """Take a shared producer in.

        A generated name belongs to one client: when it comes back with a later epoch, it takes over
        from what is left of its old connection.
        """
        if self._holder is not None or self._waiting:
            self._probe(producer)
            raise NameBusyError(f"Topic has an existing exclusive producer: {self._holder_name()}")
        present = self._producers.get(producer.name)
        if present is not None:
            if not (producer.generated and producer.epoch > present.epoch):
                if present.link is not producer.link:
                    present.link.probe()
                raise NameBusyError(
                    f"Producer with name '{producer.name}' is already connected to topic"
                )
            self._replace(present)
        self._producers[producer.name] = producer

    def _queue(self, producer: Producer) -> bool:
        """Let a producer wait if it asked for that; return False, or raise ProducerFencedError."""
        self._probe(producer)
        if producer.access is ProducerAccess.WAIT_FOR_EXCLUSIVE:
            if len(self._waiting) >= MAX_WAITING_PRODUCERS:
                raise TooManyRequestsError(f"{MAX_WAITING_PRODUCERS} producers wait already")
            self._waiting[producer] = None
            return False
        if self._holder is None and not self._waiting:
            raise ProducerFencedError("Topic has existing shared producers")
        raise ProducerFencedError(
            f"Topic has an existing exclusive producer: {self._holder_name()}"
        )

    def _call_next(self) -> None:
        while self._waiting and not self._producers:
            producer = next(iter(self._waiting))
            del self._waiting[producer]
            try:
                self._check_epoch(producer)
            except (ProducerFencedError, RouterError) as failure:
                producer.link.producer_failed(producer, failure)
            else:
                self._grant(producer)
                producer.link.producer_turn(producer)

    def _check_epoch(self, producer: Producer) -> None:
        known, present = producer.topic_epoch, self._epochs.topic_epoch
        if known is None:
            return
        if known > MAX_EPOCH:
            raise BadRequestError(f"topic epoch {known} is too large")
        if present is not None and known < present:
            raise ProducerFencedError(
                f"Topic epoch has already moved. Current epoch: {present}, Producer epoch: {known}"
            )

    def _grant(self, producer: Producer) -> None:
        if producer.topic_epoch is None:
            present = self._epochs.topic_epoch
            producer.topic_epoch = 0 if present is None else present + 1
        self._epochs.topic_epoch = producer.topic_epoch
        self._producers[producer.name] = producer
        self._holder = producer

    def _succeeds_holder(self, producer: Producer) -> bool:
        """Return whether this is the holder again, on a new connection."""
        holder = self._holder
        return (
            holder is not None
            and holder.name == producer.name
            and holder.epoch < producer.epoch
            and (producer.generated or producer.topic_epoch == holder.topic_epoch)
        )

    def _replace(self, present: Producer) -> None:
        del self._producers[present.name]
        present.link.producer_closed(present)

    def _probe(self, producer: Producer) -> None:
        for present in self:
            if present.link is not producer.link and present is self._holder:
                present.link.probe()

    def _holder_name(self) -> str:
        return "one that waits" if self._holder is None else self._holder.name
