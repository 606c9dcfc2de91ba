"""Failures in PIP 64's words, `{"error_code": 42205, "message": …}`, or `{"reason": …}`.

The first three digits are the status. PIP 64 gives the numbers 40401, 40403 and 42201 to 42205; the
others are ours, made of the status that the failure has anywhere and 01. Apache Pulsar's dialect
has sentences without numbers; its status codes are wrong for most failures, ours are the same here
as in the other dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flask import Response, request

from router.errors import BadRequestError, ForeignPageError, RouterError
from router.web.dmaap.errors import DENIALS, TABLE, retry_after
from router.web.errors import FailureAnswers, failure_answer

DIALECT: Final = "router.pulsar_rest"
"""Where a view leaves in the environment that the request speaks Apache Pulsar's dialect."""

PULSAR: Final = "pulsar"
TOPIC_NOT_FOUND: Final = 40401
SUBSCRIPTION_NOT_FOUND: Final = 40402
CONSUMER_NOT_FOUND: Final = 40403
CONSUMER_EXISTS: Final = 40901
PAIR_INCOMPLETE: Final = 42201
SCHEMA_MISSING: Final = 42202
BAD_KEY_SCHEMA: Final = 42203
BAD_VALUE_SCHEMA: Final = 42204
BAD_MESSAGES: Final = 42205

NOT_RETRIABLE: Final = 1
RETRIABLE: Final = 2

NUMBERS: Final[Mapping[str, int]] = {
    "topic-not-found": TOPIC_NOT_FOUND,
    "namespace-not-found": TOPIC_NOT_FOUND,
    "subscription-not-found": SUBSCRIPTION_NOT_FOUND,
    "consumer-not-found": CONSUMER_NOT_FOUND,
    "consumer-exists": CONSUMER_EXISTS,
    "schema-not-found": BAD_VALUE_SCHEMA,
    "invalid-schema": BAD_VALUE_SCHEMA,
    "incompatible-schema": BAD_VALUE_SCHEMA,
    "payload-mismatch": BAD_MESSAGES,
    "not-supported": BAD_MESSAGES,
    "internal-topic": 40302,
    "publish-refused": 50301,
    "disk-full": 50302,
    "quota-exceeded": 50303,
    "topic-terminated": 40902,
}


class RestRefusedError(BadRequestError):
    """The request has one of the faults that PIP 64 numbers."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def bad(sentence: str) -> RestRefusedError:
    """Return the fault of a body that is not what its messages have to be."""
    return RestRefusedError(BAD_MESSAGES, sentence)


def number_of(error: RouterError) -> int:
    """Return the number of a failure; its first three digits are the status."""
    if isinstance(error, RestRefusedError):
        return error.number
    return _number_of_code(error.code)


def status_of_code(code: str) -> int:
    """Return the status of a failure with this code."""
    return _number_of_code(code) // 100


def _number_of_code(code: str) -> int:
    found = NUMBERS.get(code)
    return TABLE[code].status * 100 + 1 if found is None else found


def class_of(error: RouterError) -> int:
    """Return how the failure of one message is classed: whether it may go well another time."""
    return RETRIABLE if error.retriable else NOT_RETRIABLE


class PulsarRestFailures(FailureAnswers):
    """Turns what the views of PIP 64 raise into answers."""

    def __init__(self, forbidden_status: int) -> None:
        self._forbidden = forbidden_status

    def failed(self, error: RouterError) -> Response:
        """Answer a failure."""
        number = self._number(error)
        status, sentence = number // 100, _sentence(error)
        body: dict[str, object] = {"error_code": number, "message": sentence}
        if request.environ.get(DIALECT) == PULSAR:
            body = {"reason": sentence}
        after = retry_after(error, TABLE[error.code])
        if status == 503:
            after = after or "1"
        return failure_answer(status, body, after)

    def _number(self, error: RouterError) -> int:
        number = number_of(error)
        denied = error.code in DENIALS and not isinstance(error, ForeignPageError)
        return 40103 if denied and self._forbidden == 401 else number


def _sentence(error: RouterError) -> str:
    sentence = str(error)
    if error.code in {"topic-not-found", "namespace-not-found"}:
        return f"Topic not found: {sentence}"
    return sentence
