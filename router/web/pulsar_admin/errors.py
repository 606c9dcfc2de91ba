"""Failures as Pulsar's administration tells them: a status, and `{"reason": "…"}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flask import Response

from router.errors import BadRequestError, RouterError
from router.web import failures
from router.web.dmaap_errors import TABLE, retry_after

# Where Pulsar's status is another than that of the DMaaP Message Router.
STATUS: Final[Mapping[str, int]] = {
    "bad-name": 412,
    "invalid-schema": 422,
    "not-allowed": 405,
    "not-supported": 405,
    "subscription-busy": 412,
    "subscription-limit": 412,
}


class RefusedError(BadRequestError):
    """The request cannot be served, for a reason that has a status of its own in Pulsar."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def status_of(error: RouterError) -> int:
    """Return the status of a failure."""
    if isinstance(error, RefusedError):
        return error.status
    found = STATUS.get(error.code)
    return TABLE[error.code].status if found is None else found


class Failures(failures.Failures):
    """Turns what the views of the administration raise into answers."""

    def failed(self, error: RouterError) -> Response:
        """Answer a failure."""
        status = status_of(error)
        if status == 403:
            status = self._forbidden
        after = retry_after(error, TABLE[error.code]) if status in {429, 503} else None
        return failures.told(error, status, {"reason": str(error)}, after)
