"""What failures of the router are called in the JetStream API: a table of errors by their class."""

from __future__ import annotations

from typing import Final

from router.broker.storage import DamagedError, StoreError
from router.errors import (
    BadRequestError,
    DiskFullError,
    ForbiddenError,
    RouterError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error

_FORBIDDEN: Final = 403
"""The status of what a client has no right to do; JetStream has no code for it."""
_CODES: Final[tuple[tuple[type[Exception], ErrorCode], ...]] = (
    (TopicNotFoundError, ErrorCode.STREAM_NOT_FOUND),
    (TopicExistsError, ErrorCode.STREAM_NAME_EXIST),
    (BadRequestError, ErrorCode.STREAM_INVALID_CONFIG),
    (DiskFullError, ErrorCode.STORAGE_RESOURCES_EXCEEDED),
    (StoreError, ErrorCode.STREAM_STORE_FAILED),
    (RouterError, ErrorCode.STREAM_GENERAL),
    (DamagedError, ErrorCode.STREAM_GENERAL),
    (OSError, ErrorCode.STREAM_GENERAL),
)

FAILURES: Final[tuple[type[Exception], ...]] = (JetStreamError, *(kind for kind, _ in _CODES))
"""What a call may fail with."""


def jetstream_error(failure: Exception) -> JetStreamError:
    """Return the error of the API for a failure; raise TypeError if it is none of a call."""
    if isinstance(failure, JetStreamError):
        return failure
    for kind, code in _CODES:
        if isinstance(failure, kind):
            sentence = error(code, err=str(failure) or "not permitted").description
            return JetStreamError(
                code, sentence, _FORBIDDEN if isinstance(failure, ForbiddenError) else 0
            )
    raise TypeError(f"{type(failure).__name__} is no failure of a call")
