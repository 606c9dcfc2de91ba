"""One HTTP connection without retries: DMaaP, PIP 64, Pulsar's administration and JetStream."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from tests.histories.nats_client import WRONG_LAST_SEQUENCE, message_of
from tests.histories.recording import Output, RefusedError, UnknownOutcomeError

SECONDS: Final = 20.0
POLL_MS: Final = 50
READ_MS: Final = 0
BUSY: Final = "Exclusive consumer is already connected"


@dataclass(frozen=True)
class Answer:
    """A status below 500, headers by their names in small letters, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)


class HttpConnection:
    """Connects when it is needed; after a failure the next call connects again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Return the answer to one request; 429 is a refusal, and 5xx leaves the outcome open."""
        data = body if isinstance(body, bytes) else b""
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
            headers = {"Content-Type": "application/json"} | (headers or {})
        if self._client is None:
            self._connect()
        assert self._client is not None
        try:
            self._client.request(method, path, data, headers or {})
            with self._client.getresponse() as found:
                names = {name.lower(): value for name, value in found.getheaders()}
                answer = Answer(found.status, names, found.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnknownOutcomeError(str(error)) from error
        if answer.status == http.client.TOO_MANY_REQUESTS:
            raise RefusedError(str(answer))
        if answer.status >= http.client.INTERNAL_SERVER_ERROR:
            raise UnknownOutcomeError(str(answer))
        return answer

    def append(self, topic: str, value: str) -> Output:
        """Produce by PIP 64; the output has the `position` of the message, of no offset."""
        answer = self.ask(
            "POST", f"/topics/public/default/{topic}", {"messages": [{"value": value}]}
        )
        (found,) = _expected(answer).json["messageIds"]
        if found["messageId"] is None:
            raise UnknownOutcomeError(str(found))
        return {"position": found["messageId"]}

    def read(self, topic: str, after: str = "") -> Output:
        """Read a topic by PIP 64 behind a position, else from the beginning on."""
        query = f"timeout={READ_MS}" + (f"&after={_escaped(after)}" if after else "")
        path = f"/topics/public/default/{topic}/partitions/0/messages?{query}"
        found = _expected(self.ask("GET", path)).json["messages"]
        return {
            "values": [one["value"] for one in found],
            "positions": [one["messageId"] for one in found],
        }

    def poll(self, topic: str, ack: str, limit: int, consumer: str = "c") -> Output:
        """Poll as a consumer of the group g; the output has the `token` of the answer.

        Where a Pulsar consumer has the group nothing is taken, but a token may have counted before.
        """
        query = f"from=earliest&timeout={POLL_MS}&limit={limit}" + (f"&ack={ack}" if ack else "")
        try:
            answer = _expected(self.ask("GET", f"/events/{topic}/g/{consumer}?{query}"))
        except UnknownOutcomeError as error:
            if ack in ("", "explicit") and BUSY in str(error):
                raise RefusedError(str(error)) from error
            raise
        return {"values": answer.json, "token": answer.headers.get("ack-token", "")}

    def acknowledge(self, topic: str, token: str, consumer: str = "c") -> Output:
        """Acknowledge an answer and take nothing."""
        answer = self.ask("GET", f"/events/{topic}/g/{consumer}?ack={token}&limit=0")
        if answer.status == http.client.CONFLICT:
            return {"status": "outdated"}
        _expected(answer)
        return {}

    def publish(self, subject: str, value: str, headers: dict[str, str] | None = None) -> Output:
        """Publish to JetStream; see NatsConnection."""
        answer = self.ask("POST", f"/jetstream/publish/{subject}", value.encode(), headers)
        sign, _, rest = answer.body.decode().partition(" ")
        fields = {name: values[0] for name, values in parse_qs(rest).items()}
        if sign == "+OK":
            return {"revision": int(fields["sequence"])}
        if fields.get("code") == str(WRONG_LAST_SEQUENCE):
            return {"status": "conflict", "revision": int(fields["reason"].rpartition(" ")[2])}
        raise UnknownOutcomeError(str(answer))

    def call(self, subject: str, body: object) -> dict[str, Any]:
        """Return the answer of JetStream's API, an object in the form of NATS."""
        return dict(self.ask("POST", f"/jetstream/api/{subject}?form=v1", body).json)

    def last(self, stream: str, subject: str) -> Output:
        """Read the newest message of a subject."""
        return message_of(self.call(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        try:
            self._client.connect()
        except OSError as error:
            self.close()
            raise RefusedError(str(error)) from error


def _expected(answer: Answer) -> Answer:
    if answer.status != http.client.OK:
        raise UnknownOutcomeError(str(answer))
    return answer


def _escaped(position: str) -> str:
    return position.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
