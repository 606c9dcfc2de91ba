"""The page of administrative changes: who changed what, when, and from where."""

from __future__ import annotations

from typing import Any, Final

import orjson
from flask import Response, request

from router.errors import NotSupportedError
from router.web.console import commands
from router.web.console.context import PageViews, words
from router.web.console.pages import HEADERS, NO_STORE, page
from router.web.openapi.description import ReplyDescription, number, operation, text
from router.web.requests import Query

NDJSON: Final = "application/x-ndjson"
SHOWN: Final = 200
MAX_EXPORTED: Final = 10_000
SEARCH: Final = text("q", "Changes that hold this in any field.")
PATH: Final = "/console/audit"


class AuditViews(PageViews):
    """The views of `/console/audit`."""

    @page(f"GET {PATH}", SEARCH)
    def audit(self) -> Response:
        """Answer the last administrative changes that a search finds, the newest first."""
        principal, search = self._context.administrator("Changes"), self._search()
        changes, note = list[dict[str, Any]](), ""
        try:
            changes = self._services.activities.audit(SHOWN, search)
        except NotSupportedError as error:
            note = f"{error}."
        query = f"?q={commands.segment(search)}" if search else ""
        url = commands.url("console", "audit", "export") + query
        data = {
            "search": search,
            "changes": changes,
            "full": len(changes) == SHOWN,
            "note": note,
            "export": f"{PATH}/export{query}",
            "commands": [commands.curl(principal, url)],
        }
        return self._context.pages.answer("audit.html", data)

    @operation(
        f"GET {PATH}/export",
        SEARCH,
        number("limit", f"At most so many, up to {MAX_EXPORTED}."),
        answers={
            200: ReplyDescription(
                "A line of JSON for each change, the newest first.", {NDJSON: str}
            )
        },
        fails=("not-supported", "backend-unavailable", "backend-timeout", "read-failed"),
    )
    def export_audit(self) -> Response:
        """Answer administrative changes as lines of JSON."""
        self._context.administrator("Changes")
        limit = Query(request.environ).number("limit", MAX_EXPORTED, MAX_EXPORTED)
        found = self._services.activities.audit(limit, self._search())
        body = b"".join(orjson.dumps(change) + b"\n" for change in found)
        headers = HEADERS | NO_STORE | {"Content-Disposition": 'attachment; filename="audit.jsonl"'}
        return Response(body, mimetype=NDJSON, headers=headers)

    @staticmethod
    def _search() -> str:
        return words(Query(request.environ), "q").strip()
