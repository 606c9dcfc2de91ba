"""Owns who produces to a partition: the names, exclusive access, and who waits for it.

Theory of operation. Names are unique within a partition, so that deduplication means something. One
producer may hold the partition for itself. It is given the next *topic epoch*, which is on disk
before the producer may begin; who comes back with an older one learns that somebody held the
partition meanwhile, and that what it believes about the topic is out of date.

`add` decides at once; `hold` waits for the disk. Nobody else comes in between the two, because the
holder stands in the table from the first on. Producers that wait hold no task and no timer: they
stand in a line, and whoever leaves calls the next (`ProducerLink.producer_turn`).

The producers that are fenced are closed like those of a deleted topic: their clients open them
anew, and are told then. Apache Pulsar tells nobody, and ends the connection, with all that else
uses it, when the fenced producer next sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

from router.broker.ledger import Ledger, Store
from router.errors import BadRequestError, RouterError, TooManyRequestsError, TopicTerminatedError

if TYPE_CHECKING:
    from router.broker.dispatch.partition import Partition

MAX_WAITING: Final = 1_000
MAX_EPOCH: Final = 2**62


class NameBusyError(Exception):
    """Another producer of this partition has the name, or the partition for itself."""


class ProducerFencedError(Exception):
    """Another producer has, had or wants the partition for itself."""


class Access(IntEnum):
    """How a producer shares its partition, numbered as in the Pulsar protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class ProducerLink(Protocol):
    """The connection of a producer. No call waits."""

    def producer_closed(self, producer: Producer) -> None:
        """Tell the client that the broker let go of its producer."""
        ...

    def producer_turn(self, producer: Producer) -> None:
        """Learn that a producer that waited is the holder now; call `hold` and then begin."""
        ...

    def producer_failed(self, producer: Producer, failure: Exception) -> None:
        """Tell the client that its producer waits in vain."""
        ...

    def probe(self) -> None:
        """Find out whether the client is still there, and close the connection if not."""
        ...


@dataclass(slots=True, eq=False)
class Producer:
    """A client's producer; `generated` names are the broker's own choice, and unique.

    `topic_epoch` is what the client believes, if it held the partition before; from `add` on it is
    what the producer has.
    """

    partition: Partition
    link: ProducerLink
    producer_id: int
    name: str
    epoch: int
    generated: bool
    deduplicated: bool
    access: Access = Access.SHARED
    topic_epoch: int | None = None
    schema_version: bytes = b""
    # Milliseconds since 1970.
    since_ms: int = 0
    # What the client says of it, for statistics.
    metadata: Mapping[str, str] = field(default_factory=dict)


class ProducerTable:
    """The producers of a partition, and those that wait to have it for themselves."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._producers: dict[str, Producer] = {}
        self._holder: Producer | None = None
        self._waiting: dict[Producer, None] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self._producers.values()))

    def add(self, producer: Producer) -> bool:
        """Take a producer in; tell whether it is its turn, and it does not have to wait.

        One that is not shared must then `hold` before it begins. Raises NameBusyError,
        ProducerFencedError, TopicTerminatedError, TooManyRequestsError, BadRequestError.
        """
        if self._ledger.terminated:
            raise TopicTerminatedError
        if producer.access is Access.SHARED:
            self._add_shared(producer)
            return True
        self._check_epoch(producer)
        if producer.access is Access.EXCLUSIVE_WITH_FENCING:
            self.let_go(ProducerFencedError("Fenced out"))
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
        await self._store.save_epoch(self._ledger)
        if self._holder is not producer:
            raise ProducerFencedError("Fenced out")

    def remove(self, producer: Producer) -> None:
        """Free a producer's name, or its place in the line."""
        if self._producers.get(producer.name) is producer:
            del self._producers[producer.name]
        self._waiting.pop(producer, None)
        if self._holder is producer:
            self._holder = None
        self._call_next()

    def let_go(self, failure: Exception) -> None:
        """Close all producers; those that wait are told of the failure."""
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
        """Let a producer wait, if that is what it wants."""
        self._probe(producer)
        if producer.access is Access.WAIT_FOR_EXCLUSIVE:
            if len(self._waiting) >= MAX_WAITING:
                raise TooManyRequestsError(f"{MAX_WAITING} producers wait already")
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
        known, present = producer.topic_epoch, self._ledger.topic_epoch
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
            present = self._ledger.topic_epoch
            producer.topic_epoch = 0 if present is None else present + 1
        self._ledger.topic_epoch = producer.topic_epoch
        self._producers[producer.name] = producer
        self._holder = producer

    def _succeeds_holder(self, producer: Producer) -> bool:
        """Tell whether this is the holder again, on a new connection."""
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
