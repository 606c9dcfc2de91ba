"""Pages of other origins: those on the list may publish and poll, others may not.

Browsers send simple requests of any page to any address, 127.0.0.1 included, before they ask. A
page could so publish, or take a group's messages away, without reading the answer. Requests that a
browser marks as coming from an origin that is not on the list are therefore refused, and not only
left without the headers that let the page read the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from router.errors import ForbiddenError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# Pages may sign as well; a Date of its own a browser lets no page send.
ALLOWED_HEADERS: Final = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID,"
    " X-CambriaAuth, X-CambriaDate, X-Auth, X-Date, X-Nonce"
)
EXPOSED_HEADERS: Final = "transactionId, Idempotency-Replayed, Retry-After"
ALLOWED_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
MAX_AGE: Final = "600"
OPENED: Final = frozenset({"/", "/console", "/docs"})
"""What links of other sites may open, with what is below OPENED_BELOW."""
OPENED_BELOW: Final = ("/console/", "/docs/")


class Cors:
    """The list of origins, and what follows from it for requests and answers."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    def check(self, environ: WSGIEnvironment) -> None:
        """Raise ForbiddenError for a request of a page that is not on the list."""
        origin = environ.get("HTTP_ORIGIN")
        if origin is None:
            # No Origin: images, frames and the like. Pages on another port are of the same site.
            site = environ.get("HTTP_SEC_FETCH_SITE")
            foreign = site in {"cross-site", "same-site"} and not _by_hand(environ)
        else:
            foreign = not (self.allows(origin) or _same(origin, environ))
        if foreign and not self._any and environ["REQUEST_METHOD"] != "OPTIONS":
            raise ForbiddenError("Pages of this origin may not use the router (cors.origins).")

    def allows(self, origin: str) -> bool:
        """Return whether the origin is on the list."""
        return self._any or origin.lower() in self._origins

    def marks(self, environ: WSGIEnvironment) -> list[tuple[str, str]]:
        """Return the headers that tell the browser what the page may do and see."""
        if not self._origins:
            return []
        marks = [("Vary", "Origin")]
        origin = environ.get("HTTP_ORIGIN")
        if origin is None or not self.allows(origin):
            return marks
        marks += [
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Expose-Headers", EXPOSED_HEADERS),
        ]
        if environ.get("HTTP_ACCESS_CONTROL_REQUEST_METHOD"):
            marks += [
                ("Access-Control-Allow-Methods", ALLOWED_METHODS),
                ("Access-Control-Allow-Headers", ALLOWED_HEADERS),
                ("Access-Control-Max-Age", MAX_AGE),
            ]
        return marks


def _by_hand(environ: WSGIEnvironment) -> bool:
    """Return whether a user followed a link to a page of ours; scripts and frames do not count.

    A link to any other path may take a group's messages away, as a poll does.
    """
    path = environ["PATH_INFO"]
    return (
        (path in OPENED or path.startswith(OPENED_BELOW))
        and environ["REQUEST_METHOD"] in {"GET", "HEAD"}
        and environ.get("HTTP_SEC_FETCH_USER") == "?1"
        and environ.get("HTTP_SEC_FETCH_DEST") == "document"
    )


def _same(origin: str, environ: WSGIEnvironment) -> bool:
    host: str = environ.get("HTTP_HOST", "")
    try:
        return host != "" and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # as for http://[
        return False
