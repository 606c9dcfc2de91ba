"""Request heads: read strictly, and written in WSGI's words (PEP 3333).

A head is read twice. One pattern holds it to the grammar of RFC 9112, without any of the
leniencies that the RFC leaves to servers: lines end in CRLF, one space parts the words, a name is a
token right before its colon, no line is continued, no control character or NUL is anywhere. Then
llhttp takes it apart, with its own checks of lengths and codings, and must find as many fields.
llhttp alone would take some of what a proxy reads differently, such as a coding given twice or a
chunked body in HTTP/1.0; the pattern alone costs 2 µs, and knows nothing of lengths.

Bodies are not llhttp's: its Python binding cannot say where a message ends, so that the next one
would be parsed before this one is answered, and it bounds neither extensions nor trailers.

Clients send the same head again and again, and parsing one costs a tenth of a small publish. So the
worker has a table of short heads, by their bytes and by where they come from: what each says, and
what the application prepared for it (`KnownHeads`). The table has a bound in bytes, since clients
choose what is in a head: 100 short fields take six times the memory of ten.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

import httptools
from gunicorn import SERVER_SOFTWARE
from gunicorn.http.wsgi import FileWrapper

from router.clocks.steps import DEFERRED, Prepared
from router.web.media import FIELD_VALUE, WORD
from router.web.worker import bounds

# Of RFC 9112, 3.2: none or several hosts, or none that is a host, is 400. More than names and
# addresses have is nothing that a name server knows, and nothing to compare with an Origin.
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?")
_FIRST: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r")
_HEAD: Final = re.compile(
    (
        r"([A-Z-]{3,20}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])\r\n"
        rf"((?:{WORD}:{FIELD_VALUE}\r\n)*)\r\n"
    ).encode()
)
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
# A request line as far as it may be shown: none of what a log or a terminal would take for more.
_LINE: Final = re.compile(rb"(?:\r\n)?([!-~]+) ([!-~]+) (HTTP/[0-9]\.[0-9])\r\n")
_LENGTH: Final = "CONTENT_LENGTH"
_CODING: Final = "HTTP_TRANSFER_ENCODING"
# Two of these say two things; of the others RFC 9110, 5.3, makes a list.
_SINGLE: Final = frozenset({_LENGTH, _CODING, "CONTENT_TYPE", "HTTP_HOST"})
# An attribute of a CloudEvent is there once.
_EVENT: Final = "HTTP_CE_"
_CODINGS: Final = frozenset({"gzip", "deflate", "compress", "x-gzip", "x-compress"})
_MAX_LENGTH_DIGITS: Final = 18
_MAX_CACHED_NAMES: Final = 1_000
MAX_CACHED_HEAD_BYTES: Final = 2 * 1024
MAX_CACHED_BYTES: Final = 16 * 1024 * 1024
"""Of all cached heads: some 3,000. A client has one for each topic and length of body."""
# What a head takes in the table: itself, with what is prepared for it; beside that each field.
_CACHED_HEAD_BYTES: Final = 3_000
_CACHED_FIELD_BYTES: Final = 100
_DROPPED: Final[dict[str, Any]] = {}
# Names that clients use, made once each; bounded, since clients choose them.
_keys: dict[bytes, str] = {}


class RequestRefusedError(Exception):
    """A request that is not served: its status, and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def malformed(sentence: str) -> RequestRefusedError:
    """Return the refusal of what is not HTTP, or could be read in two ways."""
    return RequestRefusedError(HTTPStatus.BAD_REQUEST, sentence)


def bad_host(host: str | None, version: tuple[int, int]) -> str | None:
    """Return what is wrong with a Host header, None: nothing."""
    if host is None:
        return None if version < (1, 1) else "The Host header is missing."
    return None if _HOST.fullmatch(host) else "The Host header is no host."


@dataclass(frozen=True, slots=True)
class Head:
    """A request line, and the fields as they were sent."""

    method: str
    target: str
    version: tuple[int, int]
    fields: list[tuple[bytes, bytes]]


class Framing(NamedTuple):
    """How a request goes on: `length` is None for a chunked body; `closing`: it is the last."""

    length: int | None
    expects: bool
    closing: bool


class RequestHead(NamedTuple):
    """What a head says; `environ`, its part of the environment, is shared: do not change it."""

    head: bytes
    method: str
    version: tuple[int, int]
    environ: dict[str, Any]
    framing: Framing


class KnownHead:
    """What the worker knows of the requests with one head that come from one origin.

    `times`: how often it was served in steps; `size`: of such a request with its body, in bytes.
    """

    __slots__ = ("cached_bytes", "prepared", "request", "size", "times")

    def __init__(self, request: RequestHead) -> None:
        self.prepared: Prepared | None = None
        self.request = request
        self.size = 0
        self.times = 0
        self.cached_bytes = _cached_bytes(request)

    def whole(self) -> RequestHead:
        """Return the request with its environment, read again if that was dropped."""
        return self.request if self.request.environ else parse(self.request.head)

    def drop_environ(self) -> None:
        """Keep the head alone: what is prepared needs no more, and a poll that waits keeps it."""
        self.request = self.request._replace(environ=_DROPPED)


class KnownHeads:
    """A worker's table of heads of MAX_CACHED_HEAD_BYTES at most, by origin and bytes.

    As many as fit are kept; the oldest go first. A head in use is parsed and prepared once more
    then: to note each use would cost more. Refused heads are not kept: their connections end.
    """

    def __init__(self) -> None:
        self._table: OrderedDict[tuple[str, bytes], KnownHead] = OrderedDict()
        self._size = 0
        self.get = self._table.get
        """Returns what is known of a head, None: nothing."""

    def learn(self, key: tuple[str, bytes]) -> KnownHead:
        """Return what a head says that is not known; raise RefusedError if it is refused."""
        known = self._table[key] = KnownHead(parse(key[1]))
        self._size += known.cached_bytes
        while self._size > MAX_CACHED_BYTES:
            self._size -= self._table.popitem(last=False)[1].cached_bytes
        return known


def _cached_bytes(request: RequestHead) -> int:
    """Return about how many bytes a head takes in the table, more rather than less."""
    fields = _CACHED_FIELD_BYTES * len(request.environ)
    return _CACHED_HEAD_BYTES + 2 * len(request.head) + fields


class ConnectionEnds(NamedTuple):
    """Who is at the ends of a connection, which one of so many workers serves.

    `peer` and `local` are addresses as sockets give them; those of unix sockets are texts.
    """

    peer: Any
    local: Any
    workers: int


def origin(ends: ConnectionEnds) -> str:
    """Return the addresses of a connection that its requests depend on; many have the same."""
    address = ends.peer[0] if isinstance(ends.peer, tuple) else ""
    name, port = ends.local[:2] if isinstance(ends.local, tuple) else ("localhost", "")
    return sys.intern(f"{address} {name} {port}")


def head_end(data: bytes, seen: int) -> int:
    """Return where a head ends, 0: it goes on; raise RefusedError for what no head begins with.

    `seen` bytes were looked at before, and the head did not end in them.
    """
    found = data.find(b"\r\n\r\n", max(0, seen - 3))
    if found >= 0 and found + 4 <= bounds.MAX_HEAD_BYTES:
        return found + 4
    if data[0] not in _FIRST:
        raise malformed("The request line is malformed.")
    if found < 0 and data.count(b"\n") != data.count(b"\r\n"):
        raise malformed("A line ends without a carriage return.")
    if (
        data.find(b"\r\n", 2, bounds.MAX_LINE_BYTES + 4) < 0
        and len(data) > bounds.MAX_LINE_BYTES + 4
    ):
        raise RequestRefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, "The request line is too long.")
    if found >= 0 or len(data) > bounds.MAX_HEAD_BYTES:
        raise _too_large(f"The head is longer than {bounds.MAX_HEAD_BYTES} bytes.")
    return 0


def read_head(data: bytes) -> Head:
    """Return a complete head; raise RefusedError for one that is not served."""
    if data[:2] == b"\r\n":  # one empty line is nothing, of RFC 9112, 2.2
        data = data[2:]
    if len(data) > bounds.MAX_LINE_BYTES:
        _check_lengths(data)
    matched = _HEAD.fullmatch(data)
    if matched is None:
        raise malformed("The head is malformed.")
    method, target, major, minor, lines = matched.groups()
    if major != b"1":
        raise RequestRefusedError(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "The version is not HTTP/1.1."
        )
    if minor not in b"01":
        raise malformed("There is no such version of HTTP.")
    fields = _Fields().of(data)
    if len(fields) != lines.count(b"\r\n"):
        raise malformed("The head can be read in two ways.")
    if len(fields) > bounds.MAX_FIELDS:
        raise _too_large(f"There are more than {bounds.MAX_FIELDS} fields.")
    return Head(
        method.decode(), _checked(method, target.decode()), (1, 1 if minor == b"1" else 0), fields
    )


def split_target(target: str) -> tuple[str, str]:
    """Return path and query of a target, both as they were sent."""
    if not target.startswith("/"):
        absolute = _ABSOLUTE.match(target)
        target = target[absolute.end() :] if absolute else target
    path, _, query = target.partition("#")[0].partition("?")
    return path, query


def _checked(method: bytes, target: str) -> str:
    if method == b"CONNECT":
        raise RequestRefusedError(HTTPStatus.NOT_IMPLEMENTED, "This is no proxy.")
    if (
        target[0] == "/"
        or (target == "*" and method == b"OPTIONS")
        or (_ABSOLUTE.match(target) is not None)
    ):
        return target
    raise malformed("The request target is neither a path nor a URL.")


def _check_lengths(data: bytes) -> None:
    if data.find(b"\r\n") > bounds.MAX_LINE_BYTES:
        raise RequestRefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, "The request line is too long.")
    if max(map(len, data.split(b"\r\n"))) > bounds.MAX_FIELD_BYTES:
        raise _too_large(f"A field is longer than {bounds.MAX_FIELD_BYTES} bytes.")


def _too_large(sentence: str) -> RequestRefusedError:
    return RequestRefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, sentence)


@dataclass(eq=False, slots=True)
class _Fields:
    """Collects what llhttp finds in one head."""

    _found: list[tuple[bytes, bytes]] = field(default_factory=list, init=False)

    def of(self, data: bytes) -> list[tuple[bytes, bytes]]:
        try:
            httptools.HttpRequestParser(self).feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the router upgrades to no protocol
        except httptools.HttpParserInvalidMethodError as error:
            raise RequestRefusedError(
                HTTPStatus.NOT_IMPLEMENTED, "The method is unknown."
            ) from error
        except httptools.HttpParserError as error:
            raise malformed(f"The head is malformed: {error}.") from error
        return self._found

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; called by llhttp."""
        self._found.append((name, value))


def parse(data: bytes) -> RequestHead:
    """Return what a complete head says; raise RefusedError for one that is not served."""
    head = read_head(data)
    environ: dict[str, Any] = {}
    framing = add_to_environ(environ, head)
    return RequestHead(data, head.method, head.version, environ, framing)


def connection_environ(client: Any, ends: ConnectionEnds) -> dict[str, Any]:
    """Return what all requests of a connection have in common; another one at each call."""
    peer, local, workers = ends
    environ: dict[str, Any] = {
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": workers > 1,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
        "wsgi.input_terminated": True,
        DEFERRED: True,
        "SERVER_SOFTWARE": SERVER_SOFTWARE,
        "SCRIPT_NAME": "",
        "gunicorn.socket": client,
        "REMOTE_ADDR": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "",
    }
    if isinstance(peer, tuple):
        environ |= {"REMOTE_ADDR": peer[0], "REMOTE_PORT": str(peer[1])}
    if isinstance(local, tuple):
        environ |= {"SERVER_NAME": local[0], "SERVER_PORT": str(local[1])}
    return environ


def add_to_environ(environ: dict[str, Any], head: Head) -> Framing:
    """Add a request to the environment; raise RefusedError for one that has two meanings."""
    path, query = split_target(head.target)
    environ["REQUEST_METHOD"] = head.method
    environ["RAW_URI"] = head.target
    environ["PATH_INFO"] = unquote_to_bytes(path).decode("latin-1") if "%" in path else path
    environ["QUERY_STRING"] = query
    environ["SERVER_PROTOCOL"] = "HTTP/1.1" if head.version == (1, 1) else "HTTP/1.0"
    for name, value in head.fields:
        key = _keys.get(name) or _key(name)
        # A name with an underscore could stand for another field: it is as if it had not come.
        if "-" in key:
            continue
        text = value.decode("latin-1").strip(" \t")
        if key not in environ:
            environ[key] = text
        elif key in _SINGLE or key.startswith(_EVENT):
            raise malformed(f"{name.decode()} is there twice.")
        else:
            environ[key] += f",{text}"
    if wrong := bad_host(environ.get("HTTP_HOST"), head.version):
        raise malformed(wrong)
    length = _length(environ, head.version)
    expects = "HTTP_EXPECT" in environ and _expects(environ["HTTP_EXPECT"], head.version)
    return Framing(length, expects, _closing(environ.get("HTTP_CONNECTION"), head.version))


def line_environ(data: bytes) -> dict[str, Any]:
    """Return what the first line of a refused head says of the request, `-` where it is none."""
    matched = _LINE.match(data, 0, bounds.MAX_LINE_BYTES + len(b"\r\n\r\n"))
    method, target, protocol = matched.groups() if matched else (b"-", b"-", b"-")
    return {
        "REQUEST_METHOD": method.decode(),
        "RAW_URI": target.decode(),
        "SERVER_PROTOCOL": protocol.decode(),
    }


def _key(name: bytes) -> str:
    text = name.decode("ascii").upper()
    key = "-" if "_" in text else text.replace("-", "_")
    if key not in {_LENGTH, "CONTENT_TYPE", "-"}:
        key = f"HTTP_{key}"
    if len(_keys) < _MAX_CACHED_NAMES:
        _keys[name] = key
    return key


def _length(environ: dict[str, Any], version: tuple[int, int]) -> int | None:
    """Return the length of the body, None: it is chunked (RFC 9112, 6.3)."""
    declared, coding = environ.get(_LENGTH), environ.get(_CODING)
    if coding is not None:
        if declared is not None:
            raise malformed("A request has either Content-Length or Transfer-Encoding.")
        if version < (1, 1):
            raise malformed("HTTP/1.0 has no Transfer-Encoding.")
        *others, last = [word.strip(" \t") for word in coding.lower().split(",")]
        if not _CODINGS.issuperset(others) or last not in _CODINGS | {"chunked"}:
            raise RequestRefusedError(
                HTTPStatus.NOT_IMPLEMENTED, "The Transfer-Encoding is unknown."
            )
        if last != "chunked":
            raise malformed("A Transfer-Encoding that does not end in chunked has no end.")
        return None
    if declared is None:
        return 0
    if not (declared.isascii() and declared.isdigit()):
        raise malformed("Content-Length is no number.")
    if len(declared.lstrip("0")) > _MAX_LENGTH_DIGITS:
        raise malformed("Content-Length is larger than anything.")
    return int(declared)


def _expects(expected: str, version: tuple[int, int]) -> bool:
    if expected.lower() != "100-continue":
        raise RequestRefusedError(
            HTTPStatus.EXPECTATION_FAILED, "Nothing but 100-continue is expected."
        )
    return version >= (1, 1)


def _closing(connection: str | None, version: tuple[int, int]) -> bool:
    words = [] if connection is None else [w.strip(" \t") for w in connection.lower().split(",")]
    return "close" in words or (version < (1, 1) and "keep-alive" not in words)
