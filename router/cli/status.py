"""Exit statuses of the commands: one table that says which failure ends with which.

The numbers are those of sysexits.h where it has one, so that they mean the same everywhere.
"""

from __future__ import annotations

import os
from typing import Final

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadFramingError,
    BadJsonError,
    BatchTooLargeError,
    ConsumerNotFoundError,
    ForbiddenError,
    MessageTooLargeError,
    OverloadedError,
    PathNotFoundError,
    PayloadMismatchError,
    PublishRefusedError,
    RouterError,
    SettingError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TooManyRequestsError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnauthenticatedError,
)

DONE: Final = os.EX_OK
FAILED: Final = 1
USAGE: Final = 2
DIFFERS: Final = 3
BAD_DATA: Final = os.EX_DATAERR
NOT_FOUND: Final = os.EX_NOINPUT
UNREACHABLE: Final = os.EX_UNAVAILABLE
TRY_AGAIN: Final = os.EX_TEMPFAIL
REFUSED: Final = os.EX_NOPERM
BAD_SETTING: Final = os.EX_CONFIG
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141

# The first row whose class a failure is of counts.
_TABLE: Final[tuple[tuple[type[RouterError], int], ...]] = (
    (SettingError, BAD_SETTING),
    (BadFramingError, BAD_DATA),
    (BadJsonError, BAD_DATA),
    (PayloadMismatchError, BAD_DATA),
    (BatchTooLargeError, BAD_DATA),
    (MessageTooLargeError, BAD_DATA),
    (TopicNotFoundError, NOT_FOUND),
    (SubscriptionNotFoundError, NOT_FOUND),
    (ConsumerNotFoundError, NOT_FOUND),
    (PathNotFoundError, NOT_FOUND),
    (UnauthenticatedError, REFUSED),
    (ForbiddenError, REFUSED),
    (BackendUnavailableError, UNREACHABLE),
    (BackendTimeoutError, TRY_AGAIN),
    (TooManyRequestsError, TRY_AGAIN),
    (OverloadedError, TRY_AGAIN),
    (SubscriptionBusyError, TRY_AGAIN),
    (TopicTerminatedError, FAILED),
    (PublishRefusedError, TRY_AGAIN),
)


def status_of(error: RouterError) -> int:
    """Return the exit status of a command that a failure ends."""
    return next((status for cls, status in _TABLE if isinstance(error, cls)), FAILED)
