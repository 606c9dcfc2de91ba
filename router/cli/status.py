"""Exit statuses of the commands: one table that says which failure ends with which.

The numbers are those of sysexits.h where it has one, so that they mean the same everywhere.
"""

from __future__ import annotations

import os
from typing import Final

from router import errors

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
_TABLE: Final[tuple[tuple[type[errors.RouterError], int], ...]] = (
    (errors.SettingError, BAD_SETTING),
    (errors.BadFramingError, BAD_DATA),
    (errors.BadJsonError, BAD_DATA),
    (errors.PayloadMismatchError, BAD_DATA),
    (errors.BatchTooLargeError, BAD_DATA),
    (errors.MessageTooLargeError, BAD_DATA),
    (errors.TopicNotFoundError, NOT_FOUND),
    (errors.SubscriptionNotFoundError, NOT_FOUND),
    (errors.ConsumerNotFoundError, NOT_FOUND),
    (errors.ValueNotFoundError, NOT_FOUND),
    (errors.PathNotFoundError, NOT_FOUND),
    (errors.UnauthenticatedError, REFUSED),
    (errors.ForbiddenError, REFUSED),
    (errors.BackendUnavailableError, UNREACHABLE),
    (errors.BackendTimeoutError, TRY_AGAIN),
    (errors.TooManyRequestsError, TRY_AGAIN),
    (errors.OverloadedError, TRY_AGAIN),
    (errors.SubscriptionBusyError, TRY_AGAIN),
    (errors.TopicTerminatedError, FAILED),
    (errors.PublishRefusedError, TRY_AGAIN),
)


def status_of(error: errors.RouterError) -> int:
    """Return the exit status of a command that a failure ends."""
    return next((status for cls, status in _TABLE if isinstance(error, cls)), FAILED)
