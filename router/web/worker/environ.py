"""A head in WSGI's words (PEP 3333), and what it says of the body and of the connection.

A client sends the same head again and again: what a short one says is remembered, byte for byte,
as long as it is among the last REMEMBERED that came to the worker. Reading one anew costs a tenth
of a small publish.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from gunicorn import SERVER_SOFTWARE
from gunicorn.http.wsgi import FileWrapper

from router.web.later import LATER
from router.web.worker.bounds import LINE
from router.web.worker.head import Head, path_of, read
from router.web.worker.refusals import RefusedError, bad_host, malformed

# A request line as far as it may be shown: none of what a log or a terminal would take for more.
_LINE: Final = re.compile(rb"(?:\r\n)?([!-~]+) ([!-~]+) (HTTP/[0-9]\.[0-9])\r\n")
_LENGTH: Final = "CONTENT_LENGTH"
_CODING: Final = "HTTP_TRANSFER_ENCODING"
# Two of these say two things; of the others RFC 9110, 5.3, makes a list.
_SINGLE: Final = frozenset({_LENGTH, _CODING, "CONTENT_TYPE", "HTTP_HOST"})
# An attribute of a CloudEvent is there once.
_EVENT: Final = "HTTP_CE_"
_CODINGS: Final = frozenset({"gzip", "deflate", "compress", "x-gzip", "x-compress"})
_LONGEST_LENGTH: Final = 18
_MOST_KEYS: Final = 1_000
REMEMBERED: Final = 256
SHORT: Final = 2 * 1024
# Names that clients use, made once each; bounded, since clients choose them.
_keys: dict[bytes, str] = {}


@dataclass(frozen=True, slots=True)
class Framing:
    """How a request goes on: `length` is None for a chunked body; `closing`: it is the last."""

    length: int | None
    expects: bool
    closing: bool


class Request(NamedTuple):
    """What a head says; `environ`, its part of the environment, is shared: nobody changes it."""

    method: str
    version: tuple[int, int]
    environ: dict[str, Any]
    framing: Framing


def of_head(data: bytes) -> Request:
    """Return what a complete head says; raise RefusedError for one that is not served."""
    return _remembered(data) if len(data) <= SHORT else _read(data)


def of_connection(client: Any, peer: Any, local: Any, workers: int) -> dict[str, Any]:
    """Return what all requests of a connection have in common.

    `peer` and `local` are addresses as sockets give them; those of unix sockets are texts.
    """
    environ: dict[str, Any] = {
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": workers > 1,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
        "wsgi.input_terminated": True,
        LATER: True,
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


def add(environ: dict[str, Any], head: Head) -> Framing:
    """Add a request to the environment; raise RefusedError for one that has two meanings."""
    path, query = path_of(head.target)
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


def of_line(data: bytes) -> dict[str, Any]:
    """Return what the first line of a refused head says of the request, `-` where it is none."""
    matched = _LINE.match(data, 0, LINE + len(b"\r\n\r\n"))
    method, target, protocol = matched.groups() if matched else (b"-", b"-", b"-")
    return {
        "REQUEST_METHOD": method.decode(),
        "RAW_URI": target.decode(),
        "SERVER_PROTOCOL": protocol.decode(),
    }


def _read(data: bytes) -> Request:
    head = read(data)
    environ: dict[str, Any] = {}
    framing = add(environ, head)
    return Request(head.method, head.version, environ, framing)


# A refusal is not remembered: it is the last that its connection is told.
_remembered: Final = lru_cache(maxsize=REMEMBERED)(_read)


def _key(name: bytes) -> str:
    text = name.decode("ascii").upper()
    key = "-" if "_" in text else text.replace("-", "_")
    if key not in {_LENGTH, "CONTENT_TYPE", "-"}:
        key = f"HTTP_{key}"
    if len(_keys) < _MOST_KEYS:
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
            raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, "The Transfer-Encoding is unknown.")
        if last != "chunked":
            raise malformed("A Transfer-Encoding that does not end in chunked has no end.")
        return None
    if declared is None:
        return 0
    if not (declared.isascii() and declared.isdigit()):
        raise malformed("Content-Length is no number.")
    if len(declared.lstrip("0")) > _LONGEST_LENGTH:
        raise malformed("Content-Length is larger than anything.")
    return int(declared)


def _expects(expected: str, version: tuple[int, int]) -> bool:
    if expected.lower() != "100-continue":
        raise RefusedError(HTTPStatus.EXPECTATION_FAILED, "Nothing but 100-continue is expected.")
    return version >= (1, 1)


def _closing(connection: str | None, version: tuple[int, int]) -> bool:
    words = [] if connection is None else [w.strip(" \t") for w in connection.lower().split(",")]
    return "close" in words or (version < (1, 1) and "keep-alive" not in words)
