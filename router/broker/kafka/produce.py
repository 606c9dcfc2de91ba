"""Produce (0): batches of records for partitions, advertised from version 0 and served from 3.

Clients with librdkafka before 2.1 send batches without their compression to a broker that does not
advertise the versions that it took when compression came.
"""

from __future__ import annotations

from typing import Any, Final

from router.broker.kafka.batch_appends import BatchAppender
from router.broker.kafka.batch_results import refuse
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import ErrorCode

ALL_REPLICAS: Final = -1
_ACKS: Final = frozenset({ALL_REPLICAS, 0, 1})


def produce(request: KafkaRequest) -> Any:
    """Store batches; the response follows when they are on disk."""
    body = request.body
    if body.acks not in _ACKS:
        return refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, "acks is one of -1, 0 and 1")
    if not body.topic_data:
        request.answer(request.response() if body.acks else None)
    else:
        request.client.part(BatchAppender).produce(request)
    return None


PRODUCE: Final = KafkaApi(0, "Produce", (0, 13), produce, served_from=3, overlaps=True)
