"""FindCoordinator (10): the one broker coordinates every group and transaction."""

from __future__ import annotations

from typing import Any, Final

from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.group_membership import check_group_id
from router.wire.kafka.error_codes import ErrorCode

MAX_KEYS: Final = 10_000
"""Groups or transactional ids that one request may name."""
_GROUP: Final = 0
_TRANSACTION: Final = 1
_BATCHED_FROM: Final = 4


def find_coordinator(request: KafkaRequest) -> Any:
    """Answer with the broker's address for each group or transactional id."""
    body = request.body
    if request.version < _BATCHED_FROM:
        found = _coordinator(request, body.key, body.key_type)
        return request.response(**{name: found[name] for name in found if name != "key"})
    coordinators = [
        request.struct("Coordinator", **_coordinator(request, key, body.key_type))
        for key in body.coordinator_keys[:MAX_KEYS]
    ]
    return request.response(coordinators=coordinators)


def _coordinator(request: KafkaRequest, key: str, kind: int) -> dict[str, Any]:
    error, message = check_group_id(key), None
    if kind == _TRANSACTION:
        error = ErrorCode.NONE if key else ErrorCode.INVALID_REQUEST
    elif kind != _GROUP:
        error, message = ErrorCode.INVALID_REQUEST, "bad-request: the kind of coordinator"
    host, port = request.context.address(request.client.connection)
    found: dict[str, Any] = {"key": key, "error_code": error, "error_message": message}
    if error is not ErrorCode.NONE:
        return found | {"node_id": -1, "host": "", "port": -1}
    return found | {"node_id": NODE_ID, "host": host, "port": port}


FIND_COORDINATOR: Final = KafkaApi(10, "FindCoordinator", (0, 6), find_coordinator)
