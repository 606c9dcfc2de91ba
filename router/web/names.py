"""Names in paths: percent-escapes are decoded once, strictly, after the path was taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from router.errors import BadNameError
from router.model import TopicName, check_consumer_name
from router.quoting import quoted

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

MAX_GROUP: Final = 1_024
"""Characters of the name of a group of any protocol."""
_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
# Escapes of characters that need none (RFC 3986, 2.3): the path means the same without them.
_NEEDLESS: Final = re.compile(r"%(2[DdEe]|5[Ff]|7[Ee]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa])")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class RawPaths:
    """Hands the application the path as it was sent, escapes and all.

    WSGI servers decode the path before the application can take it apart: `a%2Fb` becomes two
    segments and bad UTF-8 becomes something else. Where the server tells what was sent, PATH_INFO
    is set to that; routes then match single segments, and `decode` does the rest.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        raw = environ.get("RAW_URI") or environ.get("REQUEST_URI") or ""
        if "%" in raw:
            environ["PATH_INFO"] = _path(raw, environ.get("SCRIPT_NAME", ""))
        return self._application(environ, start)


def _path(raw: str, mounted: str) -> str:
    path = _AUTHORITY.sub("", raw, count=1).partition("?")[0].partition("#")[0]
    return _NEEDLESS.sub(lambda m: chr(int(m[1], 16)), path.removeprefix(mounted))


@lru_cache(maxsize=8_192)
def decode(segment: str) -> str:
    """Return a path segment without its escapes; raise BadNameError if one cannot be read."""
    if "%" not in segment:
        return segment
    if _ESCAPE.search(segment):
        raise BadNameError(f"{quoted(segment)} has a percent sign that is no escape")
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise BadNameError(f"{quoted(segment)} is not UTF-8") from error


def topic_names(tenant: str, namespace: str, longest: int) -> Callable[[str], TopicName]:
    """Return what reads a topic's name from a path segment and raises BadNameError."""

    @lru_cache(maxsize=8_192)
    def topic(segment: str) -> TopicName:
        local = decode(segment)
        if len(local) > longest:
            raise BadNameError(f"topic name {quoted(local)} has more than {longest} characters")
        if "/" in local:
            raise BadNameError(f"topic name {quoted(local)}: allowed are A-Z a-z 0-9 . _ -")
        return TopicName.parse(local, tenant, namespace)

    return topic


def group_name(segment: str) -> str:
    """Return the name of a group that exists, from a path segment; raise BadNameError.

    Clients of other protocols name theirs as they like: it is not held to what new groups of HTTP
    are called.
    """
    name = decode(segment)
    if not 1 <= len(name) <= MAX_GROUP:
        raise BadNameError(f"group name {quoted(name, 40)}: it has 1 to {MAX_GROUP} characters")
    return name


def consumer_name(segment: str, kind: str) -> str:
    """Return a group's or consumer's name from a path segment; raise BadNameError."""
    return check_consumer_name(decode(segment), kind)
