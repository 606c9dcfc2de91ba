"""What became of each batch of a Produce request, and the response that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.broker.consume import NameBusyError, Partition, Producer, ProducerFencedError
from router.broker.kafka.client import KafkaRequest
from router.broker.kafka.failures import ErrorCode, error_code, error_message
from router.errors import TopicHeldError
from router.wire.kafka.errors import KeylessRecordsError, RecordsError
from router.wire.kafka.record_batches import BatchHeader, Bytes

NO_OFFSET: Final = -1
KEYLESS_RECORD: Final = "a record of a compacted topic needs a key"
MAX_RECORD_ERRORS: Final = 1_000
"""That a response names of one batch, which may have 65,536."""
TOPIC_IDS: Final = 13
"""The first version in which topics have ids instead of names."""


@dataclass(slots=True, eq=False, kw_only=True)
class KafkaProducer(Producer):
    """A connection as a producer of one partition."""

    partition: Partition


@dataclass(slots=True, eq=False)
class BatchResult:
    """One batch of a request: what it is, and what became of it; `topic` is a name, or an id.

    `keyless`: the places of the records that have no key, and need one.
    """

    topic: str | bytes
    index: int
    code: int = 0
    message: str | None = None
    offset: int = NO_OFFSET
    keyless: Sequence[int] = ()
    producer: KafkaProducer | None = None
    header: BatchHeader | None = None
    payload: Bytes | None = None

    def fail(self, failure: Exception) -> None:
        """Note that the batch is not stored, and why."""
        if isinstance(failure, NameBusyError | ProducerFencedError):
            failure = TopicHeldError(str(failure))
        if isinstance(failure, RecordsError):
            self.code = failure.error_code
        else:
            self.code = error_code(failure)
        if isinstance(failure, KeylessRecordsError):
            self.keyless = failure.places
        self.message = error_message(failure)
        self.payload = None


def topic_of(request: KafkaRequest, topic: Any) -> str | bytes:
    """Return the name or the id of a topic of a request."""
    found: str | bytes = topic.topic_id if request.version >= TOPIC_IDS else topic.name
    return found


def respond(request: KafkaRequest, batches: Sequence[BatchResult]) -> Any:
    """Return the response of a request with what became of its batches."""
    topics: dict[str | bytes, list[Any]] = {}
    named = "topic_id" if request.version >= TOPIC_IDS else "name"
    for batch in batches:
        log_start = NO_OFFSET
        if batch.producer is not None:
            log_start = batch.producer.partition.visible.first_number
        found = request.struct(
            "PartitionProduceResponse",
            index=batch.index,
            error_code=batch.code,
            base_offset=batch.offset,
            log_start_offset=log_start,
            error_message=batch.message,
        )
        if batch.keyless:
            found.record_errors = [
                request.struct(
                    "BatchIndexAndErrorMessage",
                    batch_index=place,
                    batch_index_error_message=KEYLESS_RECORD,
                )
                for place in batch.keyless[:MAX_RECORD_ERRORS]
            ]
        request.count_error(batch.code)
        topics.setdefault(batch.topic, []).append(found)
    return request.response(
        responses=[
            request.struct("TopicProduceResponse", partition_responses=partitions, **{named: topic})
            for topic, partitions in topics.items()
        ]
    )


def refuse_silently(request: KafkaRequest) -> None:
    """Close a connection whose client waits for no response: it looks again then."""
    request.answer(None)
    request.client.connection.close()


def refuse(request: KafkaRequest, code: ErrorCode, sentence: str) -> Any:
    """Return a response that refuses every batch of a request."""
    return respond(
        request,
        [
            BatchResult(topic_of(request, topic), part.index, code, sentence)
            for topic in request.body.topic_data
            for part in topic.partition_data
        ],
    )
