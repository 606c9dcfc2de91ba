"""InitProducerId (22): the numbers of idempotent producers, unique over restarts."""

from __future__ import annotations

from typing import Any, Final

from router.broker.kafka.client import Api, Request
from router.broker.kafka.failures import ErrorCode


def init_producer_id(request: Request) -> Any:
    """Answer a new id; a producer with a transactional id is refused."""
    if request.body.transactional_id is not None:
        return request.response(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return request.response(producer_id=request.context.new_producer_id(), producer_epoch=0)


INIT_PRODUCER_ID: Final = Api(22, "InitProducerId", (0, 5), init_producer_id)
