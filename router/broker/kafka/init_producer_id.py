"""InitProducerId (22): the ids of idempotent and transactional producers, unique over restarts."""

from __future__ import annotations

from typing import Any, Final

from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError
from router.broker.kafka.transactions import current_of, refused

NO_PRODUCER: Final = -1
MAX_ID_CHARACTERS: Final = 1_000
FENCED_FROM: Final = 4
"""The first version that knows PRODUCER_FENCED."""


async def init_producer_id(request: KafkaRequest) -> Any:
    """Answer a new id, or the next epoch of a transactional producer once it is on disk."""
    body, producers = request.body, request.context.producers
    name = body.transactional_id
    if name is None:
        return request.response(producer_id=producers.new_producer_id(), producer_epoch=0)
    expected = None if body.producer_id == NO_PRODUCER else current_of(body)
    try:
        if not 1 <= len(name) <= MAX_ID_CHARACTERS:
            sentence = f"a transactional id has 1 to {MAX_ID_CHARACTERS} characters"
            raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)
        principal, timeout_ms = request.client.owner_name, body.transaction_timeout_ms
        begun = await producers.begin_producer(name, principal, timeout_ms, expected)
    except REFUSALS as failure:
        code = refused(request, failure, FENCED_FROM)
        return request.response(error_code=code, producer_id=NO_PRODUCER, producer_epoch=-1)
    return request.response(producer_id=begun.producer, producer_epoch=begun.epoch)


INIT_PRODUCER_ID: Final = KafkaApi(22, "InitProducerId", (0, 5), init_producer_id)
