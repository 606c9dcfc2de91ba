"""Asking the REST interface of Apache Pulsar: a request, its redirects, what its answer means."""

from __future__ import annotations

import json
import time
from http.client import BadStatusLine, HTTPException, HTTPResponse
from typing import Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from router.clocks import seconds_left
from router.errors import (
    BackendUnavailableError,
    NotAllowedError,
    RouterError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.errors.quoting import failure_text
from router.pulsar_client.credentials import PulsarCredentials
from router.settings import without_password

T = TypeVar("T")

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A list of 100,000 topics has 5 MB."""
READ_BYTES: Final = 256 * 1024
NOT_PULSAR: Final = "The administration's answer is none of Apache Pulsar's: see ?admin="
_JSON: Final = "application/json"
_STATUS: Final[dict[int, type[RouterError]]] = {
    401: NotAllowedError,
    403: NotAllowedError,
    404: TopicNotFoundError,
    409: TopicExistsError,
}


class _Redirects(HTTPRedirectHandler):
    """Asks the broker that owns a topic for the same: method, body and all, which urllib drops."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if code not in {307, 308}:
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return Request(  # noqa: S310 - urllib checked the scheme of where it leads
            newurl,
            data=req.data,
            headers=req.headers,
            origin_req_host=req.origin_req_host,
            unverifiable=True,
            method=req.get_method(),
        )


class RestPeer:
    """The administration at one address."""

    def __init__(self, url: str, credentials: PulsarCredentials) -> None:
        self._url = url
        self._shown = without_password(url)
        self._credentials = credentials

    def get(self, path: str, kind: type[T], deadline: float) -> T:
        """Return what is there; raise BackendUnavailableError if it is none of Apache Pulsar's."""
        found = self.ask("GET", path, deadline)
        if not isinstance(found, kind):
            raise BackendUnavailableError(NOT_PULSAR)
        return found

    def ask(
        self, method: str, path: str, deadline: float, body: bytes | None = None, kind: str = _JSON
    ) -> Any:
        """Return the JSON of an answer, None: it is empty; raise what its status means."""
        who = self._credentials
        try:
            request = Request(  # noqa: S310 - the scheme is checked where the address is parsed
                f"{self._url}/admin/v2/{path}",
                data=body,
                method=method,
                headers={"Content-Type": kind, **who.headers()},
            )
            context = who.context() if self._url.startswith("https:") else None
            opener = build_opener(_Redirects, HTTPSHandler(context=context))
            with opener.open(request, timeout=seconds_left(deadline)) as answer:
                data = _read(answer, deadline)
            return json.loads(data) if data else None
        except HTTPError as error:
            failure = _STATUS.get(error.code, BackendUnavailableError)
            raise failure(
                f"The administration at {self._shown} answers {error.code}: {_reason(error)}"
            ) from error
        except (OSError, HTTPException, ValueError) as error:
            raise BackendUnavailableError(
                f"The administration at {self._shown} cannot be asked: {_cause(error)}"
            ) from error


def _cause(error: Exception) -> str:
    """Return what a request failed with: the library wraps it, or quotes the peer's bytes."""
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        error = error.reason
    if isinstance(error, BadStatusLine) and not isinstance(error, OSError):
        return "the answer is not HTTP"
    return failure_text(error)


def _read(answer: HTTPResponse, deadline: float) -> bytes:
    """Return the body of an answer; raise TimeoutError for one that goes on for too long."""
    parts, size = list[bytes](), 0
    while size < MAX_ANSWER_BYTES and (part := answer.read1(READ_BYTES)):
        if time.monotonic() >= deadline:
            raise TimeoutError("no whole answer in time")
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _reason(error: HTTPError) -> str:
    """Return what an answer says of its failure, as far as it comes."""
    try:
        with error:
            return error.read(4096).decode("utf-8", "replace").strip()
    except (OSError, HTTPException) as failure:
        return str(failure)
