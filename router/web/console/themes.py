"""The theme of pages: the system's, light or dark; a cookie has it, so that no page flashes."""

from __future__ import annotations

from itertools import islice
from typing import Final
from urllib.parse import urlsplit
from wsgiref.types import WSGIEnvironment

from router.web.addresses import root

THEMES: Final = ("system", "light", "dark")
COOKIE: Final = "router-theme"
MAX_AGE_SECONDS: Final = 365 * 24 * 3600
MAX_COOKIES: Final = 50
"""Cookies of a request that are looked at."""


def theme(environ: WSGIEnvironment) -> str:
    """Return the theme that a browser chose, the system's if it chose none."""
    pairs = (part.strip().partition("=") for part in environ.get("HTTP_COOKIE", "").split(";"))
    found = (value for name, _, value in islice(pairs, MAX_COOKIES) if name == COOKIE)
    return next((value for value in found if value in THEMES), THEMES[0])


def cookie(environ: WSGIEnvironment, chosen: str) -> str:
    """Return the Set-Cookie header that keeps a theme for all pages of this router."""
    path = urlsplit(root(environ)).path.rstrip("/") or "/"
    return f"{COOKIE}={chosen}; Path={path}; Max-Age={MAX_AGE_SECONDS}; SameSite=Lax"
