"""Pages for administrators: settings in force with their origins, pipelines, what clients hold."""

from __future__ import annotations

from typing import Any, Final

import structlog
from flask import Response, request

from router.errors import NotSupportedError
from router.services.pipelines import MAX_LISTED
from router.settings import BY_NAME, DEFAULT, Settings, Value, shown
from router.web.console import commands
from router.web.console.context import PageContext, PageViews, words
from router.web.console.fields import Fields
from router.web.console.pages import FAILS, action, page
from router.web.openapi.description import flag, text
from router.web.requests import Query, decode

_ONE_FAILS: Final = (*FAILS, "value-not-found")
_log = structlog.get_logger(__name__)


class PipelineViews(PageViews):
    """The view of `/console/pipelines`."""

    @page("GET /console/pipelines")
    def pipelines(self) -> Response:
        """Answer the pipelines that this node knows, with state, lag, rate and last error."""
        principal = self._context.administrator("Pipelines")
        found = self._services.pipelines.listed()
        url = commands.url("console", "pipelines") + "?format=json"
        data = {
            "pipelines": found,
            "full": len(found) == MAX_LISTED,
            "commands": [
                commands.curl(principal, url),
                commands.router("pipeline", "list"),
                *(commands.router("pipeline", "status", one["name"]) for one in found),
            ],
        }
        return self._context.pages.answer("pipelines.html", data)


class ConnectionViews(PageViews):
    """The views of `/console/connections`."""

    @page("GET /console/connections")
    def connections(self) -> Response:
        """Answer the clients of the broker's listeners: who, protocol, since when, bytes."""
        principal = self._context.administrator("Connections")
        found, note = dict[str, Any](count=0, clients=[]), ""
        try:
            found = self._services.activities.connections()
        except NotSupportedError as error:
            note = f"{error}."
        clients = sorted(found["clients"], key=lambda one: (one["protocol"], one["peer"]))
        url = commands.url("console", "connections") + "?format=json"
        data = {
            "count": found["count"],
            "clients": clients,
            "note": note,
            "commands": [commands.curl(principal, url)],
        }
        return self._context.pages.answer("connections.html", data)

    @action("POST /console/connections/end", "peer")
    def end_connection(self) -> Response:
        """End the connection of a client, which may connect again."""
        principal = self._context.administrator("Connections")
        peer = Fields(request.environ).text("peer")
        ended = self._services.activities.disconnect(peer)
        _log.info("client-disconnected", peer=peer, user=principal.name)
        data = {"peer": peer, "disconnected": ended}
        return self._context.pages.done(data, "/console/connections")


class TransactionPageViews(PageViews):
    """The views of `/console/transactions`."""

    @page("GET /console/transactions")
    def transactions(self) -> Response:
        """Answer the open transactions, the oldest first: of whom, since when, in how much."""
        principal = self._context.administrator("Transactions")
        found, note = dict[str, Any](count=0, transactions=[]), ""
        try:
            found = self._services.transactions.listed()
        except NotSupportedError as error:
            note = f"{error}."
        url = commands.url("console", "transactions") + "?format=json"
        data = {
            **found,
            "note": note,
            "commands": [commands.curl(principal, url), commands.router("transactions", "list")],
        }
        return self._context.pages.answer("transactions.html", data)

    @page("GET /console/transactions/<transaction>", fails=_ONE_FAILS)
    def transaction(self, transaction: str) -> Response:
        """Answer an open transaction with its partitions and the positions that it commits."""
        principal = self._context.administrator("Transactions")
        found = self._services.transactions.described(decode(transaction))
        url = commands.url("console", "transactions", found["id"]) + "?format=json"
        data = {
            **found,
            "commands": [
                commands.curl(principal, url),
                commands.router("transactions", "describe", found["id"]),
                commands.router("transactions", "abort", found["id"]),
            ],
        }
        return self._context.pages.answer("transaction.html", data)

    @action("POST /console/transactions/<transaction>/abort", fails=("value-not-found", "conflict"))
    def abort(self, transaction: str) -> Response:
        """Abort an open transaction, and fence its producer."""
        principal = self._context.administrator("Transactions")
        aborted = self._services.transactions.abort(decode(transaction))
        _log.info("transaction-aborted", transaction=aborted["id"], user=principal.name)
        return self._context.pages.done(aborted, "/console/transactions")


class SettingsViews(PageViews):
    """The view of `/console/settings`."""

    def __init__(self, context: PageContext, settings: Settings) -> None:
        super().__init__(context)
        self._settings = settings

    @page(
        "GET /console/settings",
        text("q", "Settings that hold this."),
        flag("changed", "Those that are not the default."),
    )
    def settings(self) -> Response:
        """Answer the settings of this node that a search finds, secrets masked."""
        principal, query = self._context.administrator("Settings"), Query(request.environ)
        search, changed = words(query, "q"), query.flag("changed", default=False)
        rows = [
            row
            for name, value in self._settings.values.items()
            if not changed or value.origin != DEFAULT
            if _matches(row := _row(name, value), search)
        ]
        url = commands.url("console", "settings") + "?format=json"
        data = {
            "search": search,
            "changed": changed,
            "settings": rows,
            "commands": [
                commands.curl(principal, url),
                commands.router("check", *(["--changed"] if changed else [])),
            ],
        }
        return self._context.pages.answer("settings.html", data)


def _row(name: str, value: Value) -> dict[str, Any]:
    return {
        "name": name,
        "value": _printable(shown(name, value.text)),
        "origin": _printable(value.origin),
        "default": BY_NAME[name].default,
        "meaning": BY_NAME[name].sentence,
    }


def _printable(text: str) -> str:
    """Return a text without what is no character: bytes of a variable or a file's name."""
    return text.encode(errors="replace").decode()


def _matches(row: dict[str, Any], search: str) -> bool:
    # What is masked is not searched: a search must not find out a secret.
    return any(search.lower() in text.lower() for text in row.values())
