"""The table view of compacted topics over HTTP: the newest value of one key, and of all by page.

To read them needs the right to subscribe to the topic.
"""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Final

from flask import Response, request

from router.errors import BadReadOptionError
from router.model.policies import MAX_LATEST
from router.services.latest import LatestValues
from router.web import forms
from router.web.access import Right
from router.web.openapi import description as api
from router.web.requests import Query, decode
from router.web.topic_access import TopicAccess

DEFAULT_KEYS: Final = 100

_VALUE: Final = api.shape(
    {"properties": dict, "time_ms": int, "partition": int, "number": int},
    {"key": str, "key_base64": str, "value": object, "value_base64": str},
)
_PAGE: Final = api.shape({"topic": str, "values": [_VALUE], "next": str | None})
_FAILS: Final = (*api.TOPIC, *api.STORE, "not-allowed", "not-supported", "read-failed")


@dataclass(frozen=True, slots=True)
class LatestViews:
    """The views of `/topics/<topic>/latest`."""

    callers: TopicAccess
    latest: LatestValues

    @api.reads(
        "/topics/<topic>/latest",
        _PAGE,
        "The newest values.",
        api.text("after", "Where the last page ended: its `next`."),
        api.number("limit", f"At most so many, up to {MAX_LATEST}."),
        fails=_FAILS,
    )
    def listed(self, topic: str) -> Response:
        """Answer the newest value of each key of a compacted topic, by key."""
        _, name = self.callers.authorized(topic, Right.SUBSCRIBE)
        query = Query(request.environ)
        limit = query.number("limit", DEFAULT_KEYS, MAX_LATEST)
        page = self.latest.page(name, query.text("after") or None, max(1, limit))
        return forms.answer({"topic": name.local} | page)

    @api.reads(
        "/topics/<topic>/latest/<key>",
        _VALUE,
        "The newest value of the key.",
        api.flag("base64", "The key is written in base64, with - and _ for + and /."),
        fails=(*_FAILS, "value-not-found"),
    )
    def one(self, topic: str, key: str) -> Response:
        """Answer the newest value of a key of a compacted topic."""
        _, name = self.callers.authorized(topic, Right.SUBSCRIBE)
        encoded = Query(request.environ).flag("base64", default=False)
        return forms.answer(self.latest.value(name, _key(key, encoded=encoded)))


def _key(segment: str, *, encoded: bool) -> bytes:
    key = decode(segment).encode()
    if not encoded:
        return key
    try:
        return b64decode(key + b"=" * (-len(key) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise BadReadOptionError("base64: the key of the path is not in base64.") from error
