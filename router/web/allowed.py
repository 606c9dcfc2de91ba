"""Which methods a path has: those of the routes that serve something there.

A route that only refuses, for all paths below a place, is none of them: it would have every path
there look as if it had its methods.
"""

from __future__ import annotations

from typing import Final

from flask import Flask, request
from werkzeug.exceptions import HTTPException

from router.web.openapi.description import described

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed(app: Flask) -> list[str]:
    """Return the methods of this request's path, none if there is no such path."""
    adapter = app.create_url_adapter(request)
    if adapter is None:
        return []
    found = []
    for method in METHODS:
        try:
            endpoint, _ = adapter.match(method=method)
        except HTTPException:
            continue
        operation = described(app.view_functions[endpoint])
        if operation is None or not operation.hidden:
            found.append(method)
    return sorted({*found, "OPTIONS", *(["HEAD"] if "GET" in found else [])}) if found else []
