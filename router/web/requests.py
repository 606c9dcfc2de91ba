"""What a request says: names in its path, parameters of its query, its body; and its answer's id.

Percent-escapes of the path are decoded once, strictly, after the path was taken apart. A parameter
that cannot be read is refused, and never replaced by its default: a client that asks for
`timeout=5s` would wait for something else than it meant to. An empty one, as forms and scripts
send them, is as if it were absent. A body is bounded, and read whole or not at all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv6Address
from itertools import count
from typing import Final, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from router.backends import ResetTarget, Start
from router.errors import (
    BadNameError,
    BadReadOptionError,
    BadRequestError,
    BatchTooLargeError,
    ReadBodyTooLargeError,
    UnsupportedEncodingError,
)
from router.errors.quoting import failure_text, quoted
from router.model import TopicName, check_consumer_name
from router.model.publish_source import MAX_TEXT, encode_source
from router.services.groups import moment, target
from router.wire.nats.subjects import is_literal

READ_BYTES: Final = 256 * 1024
MAX_FIELDS: Final = 100
MAX_IDEMPOTENCY_KEY: Final = 255
MAX_SUBJECT: Final = 1_024
SUBJECT_HEADER: Final = "HTTP_NATS_SUBJECT"
"""In the environment: the subject of messages that name none."""
# Longest pause within a body; the server bounds the rest of a request itself.
MAX_BODY_PAUSE_SECONDS: Final = 60.0
MILLISECONDS: Final = "milliseconds"
BYTES: Final = "bytes"
MAX_NUMBER: Final = 2**63 - 1
MAX_DIGITS: Final = 19
"""Digits of MAX_NUMBER; turning very long texts into numbers costs, or fails."""
_FLAGS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
MAX_GROUP: Final = 1_024
"""Characters of the name of a group of any protocol."""
_AUTHORITY: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
# Escapes of characters that need none (RFC 3986, 2.3): the path means the same without them.
_NEEDLESS: Final = re.compile(r"%(2[DdEe]|5[Ff]|7[Ee]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa])")
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
CHANGES_NOTHING: Final = "router.changes-nothing"
"""Set in the environment by a view of administration that was asked for a preview."""
TRANSACTION: Final = "router.transaction"
"""Where a view leaves the id of its answer in the environment, if it made one."""


class _Stream(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


def body(environ: WSGIEnvironment, limit: int) -> bytes:
    """Return the body; raise BatchTooLargeError when it exceeds the limit.

    A body that breaks off, that is chunked wrongly, or whose length an HTTP/1.0 request does not
    declare, is refused with BadRequestError, and one in another transfer coding, which would stay
    undecoded, with UnsupportedEncodingError.
    """
    coding = environ.get("HTTP_TRANSFER_ENCODING")
    if coding and coding.strip().lower() != "chunked":
        raise UnsupportedEncodingError(f"Transfer-Encoding: {quoted(coding, 40)} is not chunked.")
    length = declared_length(environ)
    if _undeclared(environ) and environ.get("REQUEST_METHOD") in _WITH_BODY:
        raise BadRequestError("A request of HTTP/1.0 with a body needs a Content-Length.")
    if length == 0:
        return b""
    if length is not None and length > limit:
        raise BatchTooLargeError(f"The limit is {limit} bytes.")
    client = environ.get("gunicorn.socket")
    if client is None:
        return _read_all(environ, length, limit)
    timeout = client.gettimeout()
    client.settimeout(MAX_BODY_PAUSE_SECONDS)
    try:
        return _read_all(environ, length, limit)
    finally:
        client.settimeout(timeout)


def _read_all(environ: WSGIEnvironment, length: int | None, limit: int) -> bytes:
    if length is not None:
        found = _read(environ, length)
        if len(found) < length:
            raise BadRequestError(f"The body broke off after {len(found)} of {length} bytes.")
        return found
    parts, size = [], 0
    while part := _read(environ, READ_BYTES):
        size += len(part)
        if size > limit:
            raise BatchTooLargeError(f"The limit is {limit} bytes.")
        parts.append(part)
    return b"".join(parts)


def no_body(environ: WSGIEnvironment, limit: int) -> None:
    """Accept and ignore the body of a request that reads; raise ReadBodyTooLargeError."""
    length = declared_length(environ)
    if _undeclared(environ) or (length is not None and length <= limit):
        return  # the server reads and drops it
    try:
        body(environ, limit)
    except BatchTooLargeError as error:
        raise ReadBodyTooLargeError(str(error)) from error


def _undeclared(environ: WSGIEnvironment) -> bool:
    """Return whether a request may have a body whose end HTTP/1.0 does not show."""
    return environ.get("SERVER_PROTOCOL") == "HTTP/1.0" and not environ.get("CONTENT_LENGTH")


def declared_length(environ: WSGIEnvironment) -> int | None:
    """Return the length of the body, None for one in chunks; raise BadRequestError."""
    declared = environ.get("CONTENT_LENGTH")
    if declared:
        try:
            length = int(declared)
        except ValueError:
            length = -1
        if length < 0:
            raise BadRequestError("Content-Length is no number.")
        return length
    return None if environ.get("wsgi.input_terminated") else 0


def _read(environ: WSGIEnvironment, size: int) -> bytes:
    stream: _Stream = environ["wsgi.input"]
    try:
        return stream.read(size)
    except TimeoutError as error:
        raise BadRequestError("The body did not come in time.") from error
    except OSError as error:
        raise BadRequestError("The connection broke off within the body.") from error
    except Exception as error:
        # gunicorn raises failures of its own for malformed chunks; the front runs under any server.
        if not type(error).__module__.startswith("gunicorn.http"):
            raise
        raise BadRequestError(f"The body cannot be read: {failure_text(error)}") from error


def query(environ: WSGIEnvironment) -> Mapping[str, str]:
    """Return the query's parameters, each character one byte as sent; the first of a name wins."""
    text = environ.get("QUERY_STRING", "")
    if not text:
        return {}
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, encoding="latin-1", max_num_fields=MAX_FIELDS
        )
    except ValueError as error:
        raise BadRequestError(f"The query has more than {MAX_FIELDS} parameters.") from error
    return dict(reversed(pairs))


def idempotency_key(environ: WSGIEnvironment) -> str | None:
    """Return the key of a repeatable publish; raise BadRequestError for one that is too long."""
    key: str | None = environ.get("HTTP_IDEMPOTENCY_KEY")
    if not key:
        return None
    if len(key) > MAX_IDEMPOTENCY_KEY:
        raise BadRequestError(f"Idempotency-Key has more than {MAX_IDEMPOTENCY_KEY} characters.")
    return key


def nats_subject(environ: WSGIEnvironment) -> str | None:
    """Return the subject that a publish gives its messages, None: none.

    Raises BadRequestError for one that is too long, or that no message can have.
    """
    text: str | None = environ.get(SUBJECT_HEADER)
    if not text:
        return None
    subject = text.encode("latin-1").decode(errors="replace")
    if len(subject) > MAX_SUBJECT or "\ufffd" in subject or not is_literal(subject):
        raise BadRequestError(
            f"Nats-Subject: {quoted(subject, 80)} is no subject of at most {MAX_SUBJECT} characters"
            " without wildcards."
        )
    return subject


class Query:
    """The parameters of a request's query; the first of a name wins.

    Each method raises BadReadOptionError for a parameter that cannot be read, and returns the
    default only where there is none of this name, or an empty one.
    """

    __slots__ = ("_found",)

    def __init__(self, environ: WSGIEnvironment) -> None:
        self._found = query(environ)

    def text(self, name: str) -> str | None:
        """Return a parameter, which is UTF-8, as it is, empty too; None: there is none."""
        text = self._found.get(name)
        if text is None or text.isascii():
            return text
        try:
            return text.encode("latin-1").decode()
        except UnicodeDecodeError:
            raise _unreadable(name, "UTF-8", text) from None

    def number(self, name: str, default: int, limit: int, unit: str = "") -> int:
        """Return a whole number from 0 on, at most `limit`: a larger one is `limit`."""
        text = self._found.get(name)
        if not text:
            return default
        found = _whole_number(text)
        if found is None:
            raise _unreadable(name, f"a whole number{unit and f' of {unit}'}", text)
        return min(found, limit)

    def flag(self, name: str, *, default: bool, bare: bool = True) -> bool:
        """Return true or false, also written 1, 0, yes, no; `bare`: what an empty text means."""
        text = self._found.get(name)
        if text is None:
            return default
        found = _FLAGS.get(text.lower()) if text else bare
        if found is None:
            raise _unreadable(name, "true or false", text)
        return found

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of several words."""
        text = self._found.get(name)
        if not text:
            return default
        if text not in choices:
            raise _unreadable(name, " or ".join(choices), text)
        return text

    def moment(self, name: str) -> Start | int | None:
        """Return the earliest, the latest or a time in ms since 1970; None: there is none."""
        text = self._found.get(name)
        return moment(name, text) if text else None

    def target(self, name: str) -> ResetTarget | None:
        """Return where a group is to go on: a moment, or positions; None: there is none."""
        text = self._found.get(name)
        return target(name, text) if text else None


def source_of(environ: WSGIEnvironment, principal: str) -> bytes:
    """Return who publishes by a request; see `router.model.publish_source`."""
    client = environ.get("HTTP_USER_AGENT", "")[:MAX_TEXT]
    return encode_source("http", principal, environ.get("REMOTE_ADDR", ""), client)


def recorded(environ: WSGIEnvironment, names: Iterable[str]) -> dict[str, str]:
    """Return those of some parameters of the query that it has, for a record of the request."""
    found = query(environ)
    return {
        name: found[name].encode("latin-1").decode(errors="replace")
        for name in names
        if name in found
    }


def number(name: str, text: str) -> int:
    """Return a whole number that a path holds; raise BadReadOptionError."""
    found = _whole_number(text)
    if found is None or found > MAX_NUMBER:
        raise _unreadable(name, f"a whole number up to {MAX_NUMBER}", text)
    return found


def _whole_number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return int(digits or "0") if len(digits) <= MAX_DIGITS else MAX_NUMBER + 1


def _unreadable(name: str, expected: str, text: str) -> BadReadOptionError:
    return BadReadOptionError(f"{name}: expected {expected}, not {quoted(text, 40)}.")


class RawPaths:
    """Hands the application the path as it was sent, escapes and all.

    WSGI servers decode the path before the application can take it apart: `a%2Fb` becomes two
    segments and bad UTF-8 becomes something else. Where the server says what was sent, PATH_INFO
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


class DmaapTransactionIds:
    """Makes `dd-MM-yyyy::hh:mm:ss:SSS::<ip>::<batch id>`, as the DMaaP Message Router API has it.

    The time is UTC, its hours run to 12 as in the original. The batch id is the second, the number
    of the worker's process and a counter, which makes each id the only one of its kind on its node.
    """

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._process = f"{os.getpid():07d}"
        self._counter = count()
        self._second = -1
        self._texts = ("", "")
        # A millisecond, an address, and how its ids begin; in one piece, for other threads.
        self._last = (-1, "", "")

    def next(self, address: str) -> str:
        """Return a new id for an answer to this address."""
        ms, last = self._wall_ns() // 1_000_000, self._last
        if last[0] != ms or last[1] != address:
            last = self._last = ms, address, self._beginning(ms, address)
        return f"{last[2]}{next(self._counter)}"

    def _beginning(self, ms: int, address: str) -> str:
        """Return what the ids of a millisecond for an address have in common."""
        second, rest = divmod(ms, 1000)
        if second != self._second:
            at = datetime.fromtimestamp(second, UTC)
            self._texts = at.strftime("%d-%m-%Y::%I:%M:%S"), at.strftime("%d%m%Y%H%M%S")
            self._second = second
        shown, batch = self._texts
        if not address:
            address = "0.0.0.0"  # noqa: S104 - a client without one, on a unix socket
        elif ":" in address:
            address = _exploded(address)
        return f"{shown}:{rest:03d}::{address}::{batch}{self._process}"


def _exploded(address: str) -> str:
    """Write an IPv6 address without `::`, which separates the fields."""
    try:
        return IPv6Address(address).exploded
    except ValueError:
        return address.replace("::", ":")
