"""Requests signed with an API key, as clients of the original Message Router sign them.

    X-CambriaAuth: <key>:<base64 of HMAC-SHA1(secret, date)>      or X-Auth
    X-CambriaDate: <date>                                         or X-Date, else Date
    X-Nonce: <text>        then date:nonce is what is signed

The signed text can be cut at another colon: the date `…+05:30` is also the date `…+05` with the
nonce `30`, a time 30 minutes later. So a date with a nonce must not end in a zone without minutes.

Only the date is signed, neither method nor body: a signature read off the wire is valid for every
request until its window ends. Nonces are not remembered, as in the original: nodes would have to
agree on them for every request, and they would not protect the body. TLS does.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64encode
from calendar import timegm
from collections.abc import Callable, Mapping
from typing import Final
from wsgiref.types import WSGIEnvironment

from router.errors import UnauthenticatedError
from router.model import Principal
from router.services.keys import ApiKey, Keys

ADMIN: Final = "admin"
# As in the original, independent of the window of other keys.
MAX_ADMIN_WINDOW_SECONDS: Final = 600.0
MAX_HEADER_CHARACTERS: Final = 255

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
# RFC 822, 5.1: names that Java's `z` reads too; hours east of Greenwich.
_ZONES: Final[Mapping[str, int]] = {
    "UTC": 0,
    "GMT": 0,
    "UT": 0,
    "Z": 0,
    "EST": -5,
    "EDT": -4,
    "CST": -6,
    "CDT": -5,
    "MST": -7,
    "MDT": -6,
    "PST": -8,
    "PDT": -7,
}
_OFFSET: Final = re.compile(r"(?:GMT|UTC)?([+-])(\d{1,2})(?::?(\d{2}))?")

_CUT: Final = re.compile(r"[+-]\d{1,2}\s*\Z")
_ZONE: Final = r"(?P<zone>[A-Za-z]{1,5}|(?:GMT|UTC)?[+-]\d{1,2}(?::?\d{2})?)"
_TIME: Final = r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})"
_SECOND: Final = r":(?P<second>\d{1,2})"
_DAY: Final = r"(?P<day>\d{1,2})"
_MONTH: Final = r"(?P<month>[A-Za-z]{3,9})"
# The original's ten patterns; some differ only in the number of digits of a year.
_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # yyyy-MM-dd'T'HH:mm:ss and a zone, by its name or as +01:00
        rf"(?P<year>\d{{4}})-(?P<month>\d{{1,2}})-{_DAY}T{_TIME}{_SECOND} ?{_ZONE}",
        # EEE, dd MMM yyyy HH:mm:ss zzz, with two digits of the year, without day or seconds
        rf"(?:[A-Za-z]{{3,9}}, )?{_DAY} {_MONTH} (?P<year>\d{{2,4}}) {_TIME}(?:{_SECOND})? {_ZONE}",
        # EEE MMM dd HH:mm:ss z yyyy, EEE MMM dd HH:mm:ss yyyy
        rf"[A-Za-z]{{3,9}} {_MONTH} +{_DAY} {_TIME}{_SECOND}(?: {_ZONE})? (?P<year>\d{{4}})",
        # EEEE, dd-MMM-yy HH:mm:ss zzz
        rf"[A-Za-z]{{3,9}}, {_DAY}-{_MONTH}-(?P<year>\d{{2,4}}) {_TIME}{_SECOND} {_ZONE}",
    )
)


class Signatures:
    """Finds the key that signed a request."""

    def __init__(
        self, keys: Keys, admin_secret: str, window: float, wall_ms: Callable[[], int]
    ) -> None:
        self._keys = keys
        self._admin = ApiKey(ADMIN, admin_secret) if admin_secret else None
        self._window = window
        self._wall_ms = wall_ms

    def principal(self, environ: WSGIEnvironment) -> Principal:
        """Return whose key signed; raise UnauthenticatedError, and what the registry raises."""
        signed: str = environ.get("HTTP_X_CAMBRIAAUTH") or environ.get("HTTP_X_AUTH") or ""
        name, colon, signature = signed.strip().partition(":")
        if not (name and colon and signature) or len(name) > MAX_HEADER_CHARACTERS:
            raise UnauthenticatedError("The signature cannot be read: expected key:signature.")
        date: str = (
            environ.get("HTTP_X_CAMBRIADATE")
            or environ.get("HTTP_X_DATE")
            or environ.get("HTTP_DATE")
            or ""
        )
        nonce = environ.get("HTTP_X_NONCE")
        if nonce is not None and _CUT.search(date):
            raise UnauthenticatedError(
                "The date of the signature ends in a zone without minutes, which may be cut off by"
                " the nonce: write +0500 or +05:00 for +05."
            )
        self._check_date(
            date, min(self._window, MAX_ADMIN_WINDOW_SECONDS) if name == ADMIN else self._window
        )
        text = date if nonce is None else f"{date}:{nonce}"
        # One sentence for both, which does not say which keys exist.
        key = self._key(name)
        expected = sign("" if key is None else key.secret, text)
        matches = hmac.compare_digest(expected, signature.strip().encode("latin-1", "replace"))
        # A record without a secret is no key: every client could sign with it.
        if key is None or not key.secret or not matches:
            raise UnauthenticatedError("The API key or its signature is wrong.")
        return Principal(name, key=True, admin=key is self._admin)

    def _key(self, name: str) -> ApiKey | None:
        return self._admin if name == ADMIN else self._keys.cached(name)

    def _check_date(self, date: str, window: float) -> None:
        at = parse_date(date)
        if at is None:
            raise UnauthenticatedError("The date of the signature cannot be read.")
        if abs(self._wall_ms() / 1000 - at) > window:
            raise UnauthenticatedError(
                f"The date of the signature is more than {window:g} seconds from this server's."
            )


def sign(secret: str, text: str) -> bytes:
    """Return the signature of a text, as headers carry it."""
    return b64encode(hmac.digest(secret.encode(), text.encode("latin-1", "replace"), "sha1"))


def parse_date(date: str) -> int | None:
    """Return the seconds since 1970 of a date in one of the original's patterns.

    Names of days are not compared with the date. Without a zone it is UTC. None: it is no date.
    """
    text = date.strip()
    if len(text) > MAX_HEADER_CHARACTERS or not text.isascii():
        return None
    for pattern in _PATTERNS:
        if match := pattern.fullmatch(text):
            return _seconds(match.groupdict())
    return None


def _seconds(part: Mapping[str, str | None]) -> int | None:
    month_text = part["month"] or ""
    month = int(month_text) if month_text.isdigit() else _MONTHS.get(month_text[:3].lower(), 0)
    year = int(part["year"] or 0)
    if len(part["year"] or "") == 2:
        year += 2000
    hour, minute, second = (int(part[name] or 0) for name in ("hour", "minute", "second"))
    day = int(part["day"] or 0)
    offset = _offset(part["zone"] or "UTC")
    valid = 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60
    if offset is None or not valid or year < 1970:
        return None
    return timegm((year, month, day, hour, minute, second)) - offset


def _offset(zone: str) -> int | None:
    """Return the seconds east of Greenwich, None: an unknown name."""
    if match := _OFFSET.fullmatch(zone):
        hours, minutes = int(match[2]), int(match[3] or 0)
        return (1 if match[1] == "+" else -1) * (hours * 3600 + minutes * 60)
    hours_east = _ZONES.get(zone.upper())
    return None if hours_east is None else hours_east * 3600
