"""HTTP to a router elsewhere: one request or a stream, its credentials, its failures in words.

urllib3 rather than the standard library, whose client leaves bounds, connection reuse and the
difference between its failures to the caller; rather than requests or httpx, which bring several
packages that are of no use here. Redirects are never followed: they could take the
credentials elsewhere. Proxies of the environment are not used.

A request that may be repeated without harm is repeated while the server is away or busy, if it has
answered before: a router that restarts is back within seconds. A server that never answered is
reported at once.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError, TimeoutError

from router import errors
from router.cli.contexts import Context
from router.clocks.backoff import Backoff
from router.errors import BackendUnavailableError, RouterError, SettingError
from router.errors.quoting import failure_text
from router.process.build import VERSION

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 30.0
"""How long a request is repeated while the server is away or busy."""
MIN_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 256 << 20
MAX_SENTENCE: Final = 500
PIECE_BYTES: Final = 64 << 10
"""What is written or read at once: a write has the time of a connect, however slow the line is."""
RETRIED_STATUSES: Final = frozenset({429, 503, 504})
_ERRORS: Final[Mapping[int, type[RouterError]]] = {
    401: errors.UnauthenticatedError,
    403: errors.ForbiddenError,
    404: errors.PathNotFoundError,
    409: errors.ConflictError,
    413: errors.MessageTooLargeError,
    429: errors.TooManyRequestsError,
    503: errors.OverloadedError,
    504: errors.BackendTimeoutError,
}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer that came whole."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> Any:
        """Return the JSON of the body; raise RouterError if it is none."""
        try:
            return json.loads(self.data)
        except ValueError as error:
            raise RouterError("The server does not answer with JSON: is it a router?") from error


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is asked for; `safe`: it may be repeated after a failure.

    `wait`: seconds that the server may take beside what every answer may take.
    """

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    headers: Mapping[str, str] | None = None
    safe: bool = True
    wait: float = 0.0


class HttpClient:
    """A client of one server; one request at a time."""

    def __init__(
        self,
        context: Context,
        *,
        retry_seconds: float = RETRY_SECONDS,
        deadline: float | None = None,
        report: Callable[[str], None] = lambda sentence: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deadline`: seconds for each request instead of the usual bounds, without repeats."""
        self.context = context
        self._retry_seconds = retry_seconds if deadline is None else 0.0
        self._connect_seconds = CONNECT_SECONDS if deadline is None else deadline
        self._answer_seconds = ANSWER_SECONDS if deadline is None else deadline
        self._report = report
        self._sleep = sleep
        self._clock = clock
        self._reached = False
        self._pool = urllib3.PoolManager(
            num_pools=1, maxsize=1, ssl_context=_tls(context), retries=False
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def ask(self, request: HttpRequest) -> HttpResponse:
        """Return the answer, 2xx; raise the failure that another one stands for."""
        end = self._clock() + self._retry_seconds
        pauses = Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            was_reached = self._reached
            try:
                answer = self._once(request)
            except BackendUnavailableError as error:
                if not (request.safe and was_reached):
                    raise
                failure: RouterError = error
            else:
                if 200 <= answer.status < 300:
                    return answer
                failure = failed(answer, self.context)
                if not _may_pass(answer, request):
                    raise failure
            wait = failure.retry_after or pauses.seconds
            if self._clock() + wait > end:
                raise failure
            self._report(f"{failure} Trying again.")
            self._sleep(wait)
            pauses.next()

    def get(self, path: str) -> HttpResponse:
        """Return the answer to a GET without a query; raises as `ask` does."""
        return self.ask(HttpRequest("GET", path))

    @contextmanager
    def stream(self, request: HttpRequest, silence: float) -> Iterator[Iterator[bytes]]:
        """Yield the pieces of an answer that goes on, until it ends or is silent for so long.

        Raises SilenceError then, and BackendUnavailableError if the connection breaks.
        """
        response = self._send(request, urllib3.Timeout(connect=self._connect_seconds, read=silence))
        try:
            self._reached = True
            if response.status != 200:
                end = self._clock() + self._answer_seconds
                raise failed(self._whole(response, end), self.context)
            yield self._pieces(response)
        finally:
            response.close()

    def _pieces(self, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        try:
            if response.chunked:
                yield from response.stream(1 << 20, decode_content=False)
                return
            while piece := response.read1(1 << 20, decode_content=False):
                yield piece
        except TimeoutError as error:
            raise SilenceError("Nothing came in time.") from error
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _once(self, request: HttpRequest) -> HttpResponse:
        read = self._answer_seconds + request.wait
        end = self._clock() + read + self._connect_seconds
        timeout = urllib3.Timeout(connect=self._connect_seconds, read=read)
        response = self._send(request, timeout)
        try:
            answer = self._whole(response, end)
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        self._reached = True
        return answer

    def _send(self, request: HttpRequest, timeout: urllib3.Timeout) -> urllib3.BaseHTTPResponse:
        query = f"?{urlencode(request.query)}" if request.query else ""
        headers = {"User-Agent": f"router/{VERSION}", **self._credentials()}
        if request.body is not None:
            headers["Content-Length"] = str(len(request.body))
        try:
            return self._pool.request(
                request.method,
                f"{self.context.server}{request.path}{query}",
                body=None if request.body is None else _pieces(request.body),
                headers=headers | dict(request.headers or {}),
                timeout=timeout,
                redirect=False,
                retries=False,
                preload_content=False,
            )
        except (HTTPError, OSError) as error:
            raise self._unreachable(error) from error

    def _whole(self, response: urllib3.BaseHTTPResponse, end: float) -> HttpResponse:
        """Read an answer to its end; the connection may serve another request then."""
        pieces, size = [], 0
        while piece := response.read(PIECE_BYTES, decode_content=False):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                response.close()
                raise RouterError(f"The answer has more than {MAX_ANSWER_BYTES} bytes.")
            if self._clock() > end:
                response.close()
                raise BackendUnavailableError(f"{self.context.server} does not answer in time.")
        response.release_conn()
        return HttpResponse(response.status, response.headers, b"".join(pieces))

    def _credentials(self) -> dict[str, str]:
        scheme, given = self.context.credentials()
        if scheme == "Basic":
            pair = f"{self.context.user}:{given}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        if scheme and not (given.isascii() and given.isprintable()):
            raise SettingError("The token has characters that no token has.")
        return {"Authorization": f"{scheme} {given}"} if scheme else {}

    def _unreachable(self, error: Exception) -> BackendUnavailableError:
        server = self.context.server
        if isinstance(error, SSLError):
            return BackendUnavailableError(
                f"{server}: TLS: {_reason(error)}. (--ca FILE names the authority that signed the"
                " server's certificate.)"
            )
        # A refused connection is, of all things, a kind of timeout there.
        if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
            return BackendUnavailableError(f"{server} does not answer in time.")
        return BackendUnavailableError(f"{server} cannot be reached: {_reason(error)}.")


class SilenceError(RouterError):
    """Nothing came for as long as was agreed."""


def failed(answer: HttpResponse, context: Context) -> RouterError:
    """Return the failure that an answer stands for, with what the server says."""
    if 300 <= answer.status < 400:
        target = answer.headers.get("Location", "")[:MAX_SENTENCE]
        return RouterError(
            f"The server redirects to {target}; credentials are not sent elsewhere. If that is the"
            " router, give its address."
        )
    sentence = _sentence(answer)
    if answer.status == 401 and not context.user and not context.token and not context.token_file:
        sentence += " (No credentials were sent: --user or --token-file.)"
    cls, after = _ERRORS.get(answer.status, RouterError), _retry_after(answer)
    wait = "" if after is None else f", try again in {after:.0f} s"
    return cls(f"{sentence} (HTTP {answer.status}{wait})", retry_after=after)


def _may_pass(answer: HttpResponse, request: HttpRequest) -> bool:
    """Return whether the same request may have another answer a moment later.

    After 429 and 503 nothing was done; after 504 it is unknown. An error of JetStream's API with
    its own number is the stream's, and stays.
    """
    if answer.status not in RETRIED_STATUSES or _given(answer).get("err_code"):
        return False
    return answer.status != 504 or request.safe


def _given(answer: HttpResponse) -> Mapping[str, Any]:
    """Return the object that says what went wrong, an empty one if there is none."""
    try:
        given = json.loads(answer.data)
    except ValueError:
        return {}
    if isinstance(given, dict) and isinstance(given.get("error"), dict):
        given = given["error"]
    return given if isinstance(given, dict) else {}


def _sentence(answer: HttpResponse) -> str:
    """Return what an answer says went wrong, in whichever dialect it says so, on one line."""
    given = _given(answer)
    words = ("detail", "message", "errorMessage", "reason", "description")
    found = [given[word] for word in words if word in given]
    text = next((one for one in found if isinstance(one, str) and one), None)
    if text is None:
        return "The server refuses, and not in a router's words."
    return "".join(c if c.isprintable() else " " for c in text[:MAX_SENTENCE])


def _retry_after(answer: HttpResponse) -> float | None:
    given = answer.headers.get("Retry-After", "")
    return float(given) if given.isascii() and given.isdigit() and len(given) < 7 else None


def _reason(error: BaseException) -> str:
    """Return the innermost reason of a failure that wraps others."""
    inner = error
    while (below := inner.__cause__ or inner.__context__) is not None:
        inner = below
    if isinstance(inner, ssl.SSLCertVerificationError):
        return inner.verify_message
    if isinstance(inner, ssl.SSLError):
        return (inner.reason or str(inner)).lower().replace("_", " ")
    return failure_text(inner)


def _pieces(body: bytes) -> list[bytes]:
    return [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]


def _tls(context: Context) -> ssl.SSLContext | None:
    if not context.server.startswith("https:"):
        return None
    try:
        return ssl.create_default_context(cafile=context.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"{context.ca}: no certificates can be read from it") from error
