"""The open transactions over HTTP, for administrators: which there are, one of them, its abort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import structlog
from flask import Response, request

from router.model import Principal
from router.services.blacklist import WorkerBlacklist
from router.services.transactions import OpenTransactions
from router.web import forms
from router.web.access import RequestAuthorizer
from router.web.front import check_administrator
from router.web.openapi import description as api
from router.web.requests import decode

_SECONDS: Final[api.Schema] = {"type": "number", "minimum": 0}
_FIELDS: Final[dict[str, Any]] = {
    **{"id": str, "dialect": str, "state": str, "producer": str, "user": str},
    **{"epoch": int | None, "begun_ms": int, "age": _SECONDS, "timeout": _SECONDS},
    **{"partitions": int, "positions": int},
}
_TRANSACTION: Final = api.shape(_FIELDS)
_LISTED: Final = api.shape({"count": int, "transactions": [_TRANSACTION]})
_JOINED: Final = api.shape({"topic": str, "partition": int, "messages": int})
_COMMIT: Final = api.shape({"group": str, "topic": str, "partition": int, "number": int})
_ACKNOWLEDGED: Final = api.shape(
    {
        **{"subscription": str, "topic": str, "partition": int},
        **{"entries": int, "through": int | None},
    }
)
_DESCRIBED: Final = api.shape(
    {**_FIELDS, "joined": [_JOINED], "commits": [_COMMIT], "acknowledged": [_ACKNOWLEDGED]}
)
_FAILS: Final = (*api.STORE, "not-allowed", "not-supported")
_ONE_FAILS: Final = (*_FAILS, "value-not-found")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionViews:
    """The views of `/transactions`."""

    access: RequestAuthorizer
    blocked: WorkerBlacklist
    transactions: OpenTransactions

    @api.reads("/transactions", _LISTED, "The transactions.", fails=_FAILS)
    def listed(self) -> Response:
        """Answer the open transactions, the oldest first."""
        self._administrator()
        return forms.answer(self.transactions.listed())

    @api.reads("/transactions/<transaction>", _DESCRIBED, "The transaction.", fails=_ONE_FAILS)
    def described(self, transaction: str) -> Response:
        """Answer an open transaction with its partitions, and what it commits and acknowledges."""
        self._administrator()
        return forms.answer(self.transactions.described(decode(transaction)))

    @api.operation(
        "POST /transactions/<transaction>/abort",
        answers=api.answers_json(_TRANSACTION, "The transaction is aborted."),
        fails=(*_ONE_FAILS, "conflict"),
    )
    def abort(self, transaction: str) -> Response:
        """Abort an open transaction, and fence its producer."""
        principal = self._administrator()
        aborted = self.transactions.abort(decode(transaction))
        _log.info("transaction-aborted", transaction=aborted["id"], user=principal.name)
        return forms.answer(aborted)

    def _administrator(self) -> Principal:
        return check_administrator(self.access, self.blocked, request.environ)
