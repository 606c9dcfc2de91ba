"""Failures in the words of the DMaaP Message Router API: one table for all of them.

An error body carries two sets of fields: those of the guide (`httpStatusCode`, `mrErrorCode`,
`errorMessage`, `helpURL`, `transactionid`) and those that the original really sent (`status`,
`mrstatus`, `message`). `mrErrorCode` is the guide's number where it has one, else the original's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from router.errors import ForeignPageError, RouterError, TooManyRequestsError


@dataclass(frozen=True, slots=True)
class Row:
    """How one failure is answered: HTTP status, the guide's number, the original's, and a text.

    The text comes before the failure's own sentence; empty where that says it all.
    """

    status: int
    code: int
    mrstatus: int
    text: str = ""


_UNABLE: Final = "Unable to publish messages."
_BUSY: Final = "Server is temporarily unavailable or busy. Try again later."
_DENIED: Final = Row(403, 4002, 4002)
DENIALS: Final = frozenset({"forbidden", "access-denied"})
"""Failures that answer a client without the right, by `auth.forbidden_status`."""
_NOTHING: Final = "The requested resource was not found."
_READING: Final = "Error while reading data from topic."
_BAD: Final = Row(400, 5005, 5005, "The request is malformed.")

TABLE: Final[Mapping[str, Row]] = {
    "internal": Row(500, 1004, 1004, "Internal error."),
    "bad-setting": Row(500, 1004, 1004, "Internal error."),
    "bad-request": _BAD,
    "bad-name": _BAD,
    "bad-framing": Row(
        400, 3003, 5007, "Incorrect Batching format. Please correct the batching format."
    ),
    "bad-json": Row(
        400, 3005, 5007, "Incorrect JSON object. Please correct the JSON format and try again."
    ),
    "bad-cloud-event": Row(
        400, 3005, 5007, "Incorrect CloudEvent. Please correct the event and try again."
    ),
    "bad-read-option": Row(400, 3010, 5008, _READING),
    "not-acceptable": Row(406, 5008, 5008, _READING),
    "unsupported-encoding": Row(415, 3003, 5007, "Incorrect Batching format."),
    "batch-too-large": Row(
        413,
        3001,
        5001,
        "Message size exceeds the batch limit. Reduce the batch size and try again.",
    ),
    "message-too-large": Row(
        413,
        3004,
        5004,
        "Message size exceeds the message size limit. Reduce the message size and try again.",
    ),
    "read-body-too-large": Row(413, 3008, 5008, _READING),
    "message-over-max-bytes": Row(413, 3011, 5008, _READING),
    "unauthenticated": Row(401, 4001, 4001),
    "forbidden": _DENIED,
    "access-denied": _DENIED,
    "blacklisted": Row(403, 4002, 4002),
    "key-not-found": Row(404, 1004, 1004),
    "not-allowed": _DENIED,
    "topic-not-found": Row(404, 3001, 3001, "No such topic exists.-"),
    "internal-topic": _DENIED,
    "namespace-not-found": Row(404, 3001, 3001, "No such topic exists.-"),
    "value-not-found": Row(404, 5008, 5008, _READING),
    "schema-not-found": Row(404, 5008, 5008, _READING),
    "invalid-schema": _BAD,
    "incompatible-schema": Row(409, 5005, 5005),
    "payload-mismatch": _BAD,
    "not-supported": _BAD,
    "topic-exists": Row(409, 6003, 6003),
    "subscription-not-found": Row(404, 5008, 5008, _READING),
    "subscription-limit": Row(403, 5008, 5008, _READING),
    "subscription-busy": Row(503, 3002, 3002, _BUSY),
    "fenced": Row(503, 3002, 3002, _BUSY),
    "too-many-requests": Row(429, 5012, 5012, "This client is making too many requests."),
    "overloaded": Row(503, 3002, 3002, _BUSY),
    "publish-refused": Row(500, 3002, 5002, _UNABLE),
    "disk-full": Row(500, 3002, 5002, _UNABLE),
    "topic-terminated": Row(409, 3002, 5002, _UNABLE),
    "topic-held": Row(503, 3002, 3002, _BUSY),
    "quota-exceeded": Row(500, 3002, 5002, _UNABLE),
    "partial-publish": Row(500, 3007, 5007),
    "backend-unavailable": Row(503, 3002, 3002, _BUSY),
    "backend-timeout": Row(504, 3006, 5006),
    "outcome-unknown": Row(
        504,
        3006,
        5006,
        "The backend did not answer in time. If the request had an Idempotency-Key, a repeat with"
        " the same key stores the messages once; without a key they may be stored twice.",
    ),
    "coordination-unavailable": Row(503, 3002, 3002, _BUSY),
    "conflict": Row(409, 5005, 5005),
    "consumer-exists": Row(409, 5005, 5005),
    "consumer-not-found": Row(404, 5008, 5008, _READING),
    "read-failed": Row(500, 3009, 5008, _READING),
    "method-not-allowed": Row(405, 3003, 3003, "The method is not allowed here."),
    "missing-consumer": Row(404, 5008, 5008, _READING),
    "path-not-found": Row(404, 3001, 3001, _NOTHING),
}

# The original has other numbers for some failures where certain routes meet them: its codes say
# which operation failed rather than why.
_PUBLISH_DENIED: Final = Row(403, 4002, 5009, "Error while publishing data to topic.")
_READ_DENIED: Final = Row(403, 4002, 5008, _READING)
_LIST_DENIED: Final = Row(403, 4002, 6003)
ROUTES: Final[Mapping[tuple[str, str], Row]] = {
    ("events.publish", "access-denied"): _PUBLISH_DENIED,
    ("events.publish_transaction", "access-denied"): _PUBLISH_DENIED,
    ("events.poll", "access-denied"): _READ_DENIED,
    ("topics.describe", "topic-not-found"): Row(404, 3001, 6002, "No such topic exists.-"),
    ("acls.producers", "topic-not-found"): Row(404, 3001, 6005, "No such topic exists.-"),
    ("acls.consumers", "topic-not-found"): Row(403, 3001, 6006, "No such topic exists.-"),
    ("acls.permit_producer", "access-denied"): _LIST_DENIED,
    ("acls.revoke_producer", "access-denied"): _LIST_DENIED,
    ("acls.permit_consumer", "access-denied"): Row(403, 4002, 6009),
    ("acls.revoke_consumer", "access-denied"): _LIST_DENIED,
    ("metrics.one", "path-not-found"): Row(404, 3001, 6013),
}

# What the original answered to too many empty polls, whatever its guide says.
LEGACY_LIMIT: Final = Row(503, 3002, 3002, "Couldn't respond to client.")


@dataclass(frozen=True, slots=True)
class ErrorTexts:
    """What settings say about error answers; `forbidden_status` is that of DENIALS.

    `{code}` in `help_url` stands for the code of the failure.
    """

    help_url: str
    forbidden_status: int
    legacy_limit: bool

    def row(self, error: RouterError, endpoint: str | None = None) -> Row:
        """Return how this failure is answered, by the route of that endpoint."""
        row = self.of_code(error.code, endpoint)
        # Credentials help no page of another origin: it gets no challenge.
        return replace(row, status=403) if isinstance(error, ForeignPageError) else row

    def of_code(self, code: str, endpoint: str | None = None) -> Row:
        """Return how a failure with this code is answered, by the route of that endpoint."""
        row = ROUTES.get((endpoint or "", code)) or TABLE[code]
        if code in DENIALS:
            return replace(row, status=self.forbidden_status)
        if self.legacy_limit and code == TooManyRequestsError.code:
            return LEGACY_LIMIT
        return row

    def body(self, code: str, row: Row, sentence: str, transaction: str) -> dict[str, object]:
        """Return the body of an error answer to a failure with this code."""
        # The original's text for unknown topics goes on without a blank.
        space = "" if row.text.endswith("-") else " "
        message = f"{row.text}{space}{sentence}".strip()
        return {
            "httpStatusCode": row.status,
            "mrErrorCode": row.code,
            "errorMessage": message,
            "helpURL": self.help_url.replace("{code}", code),
            "transactionid": transaction,
            "status": row.status,
            "mrstatus": row.mrstatus,
            "message": message,
        }


def retry_after(error: RouterError, row: Row) -> str | None:
    """Return the Retry-After header: whole seconds, where trying again may help."""
    if error.retry_after is not None:
        return str(max(1, math.ceil(error.retry_after)))
    return "1" if error.retriable and row.status == 503 else None
