"""CloudEvents in binary mode over HTTP: the attributes are headers `ce-*`, the body is the data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from router.errors import BadCloudEventError
from router.quoting import quoted
from router.web.bodies.event_attributes import REQUIRED, check_name
from router.web.media import media_type

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_PREFIX: Final = "HTTP_CE_"
HEADERS: Final = frozenset(f"{_PREFIX}{name.upper()}" for name in REQUIRED)
"""In the environment: a request without any of them is no event in binary mode."""
_IN_DOCUMENTS: Final = "application/cloudevents"
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*+"')
_ESCAPED: Final = re.compile(r"\\(.)")
_ENCODED: Final = re.compile(r"(?:[ -$&-~]|%[0-9A-Fa-f]{2})*+")


def attributes(environ: WSGIEnvironment) -> dict[str, str] | None:
    """Return the attributes in a request's headers, None: it is no event in binary mode.

    Raises BadCloudEventError for headers that cannot be read; whether the attributes are valid is
    not looked at. A body that is an event itself counts, and not the headers beside it.
    """
    if environ.keys().isdisjoint(HEADERS):
        return None
    if media_type(environ.get("CONTENT_TYPE", "")).startswith(_IN_DOCUMENTS):
        return None
    found = {}
    for field, value in environ.items():
        if field.startswith(_PREFIX):
            name = field.removeprefix(_PREFIX).lower().replace("_", "-")
            check_name(name)
            found[name] = _decoded(name, value)
    return found


def _decoded(name: str, value: str) -> str:
    """Undo the quotes of older senders, then percent encoding."""
    if value.startswith('"'):
        if not _QUOTED.fullmatch(value):
            raise BadCloudEventError(f"ce-{name}: {quoted(value)} is no quoted text.")
        value = _ESCAPED.sub(r"\1", value[1:-1])
    if not _ENCODED.fullmatch(value):
        raise BadCloudEventError(
            f"ce-{name}: {quoted(value)} has a character that is to be percent-encoded, or a"
            " percent sign without two hexadecimal digits."
        )
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise BadCloudEventError(f"ce-{name}: what is percent-encoded is no UTF-8.") from None
