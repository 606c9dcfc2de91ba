"""Streams that answer as a test says: what views of JetStream are tested against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from router.clocks.steps import Steps
from router.services.jetstream import AckRequest, JetStreamRequest, Watch, unwatched
from router.wire.nats.headers import status
from router.wire.nats.message import AckResult, NatsMessage
from tests.http import jetstream
from tests.unit.web.applications import Site

Answer = Callable[[JetStreamRequest], list[NatsMessage]]


class FakeStreams:
    """Answers each request by the first rule whose subject it begins with, else by the status 503.

    `asked` has the requests in their order. Acknowledgements are in `acked`, and all of them are
    taken unless `result` says otherwise.
    """

    def __init__(self) -> None:
        self.asked: list[JetStreamRequest] = []
        self.rules: dict[str, list[Answer | Exception]] = {}
        self.watched: list[Any] = []
        self.acked: list[AckRequest] = []
        self.result: AckResult | Exception | None = None

    def answers(self, subject: str, *answers: object) -> None:
        """Answer requests in turn, the last answer again and again.

        An answer is JSON, messages, a status, a failure, or what makes messages of a request.
        """
        self.rules[subject] = [_made(answer) for answer in answers]

    def request(
        self, asked: JetStreamRequest, watch: Watch = unwatched
    ) -> Steps[list[NatsMessage]]:
        """Answer; see the protocol."""
        yield from ()
        client = watch(lambda: None)
        client.close()
        self.asked.append(asked)
        for subject, answers in self.rules.items():
            if asked.message.subject.startswith(subject):
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                if isinstance(answer, Exception):
                    raise answer
                return answer(asked)
        return [NatsMessage("", headers=status(503))]

    def acknowledge(self, asked: AckRequest) -> Steps[AckResult]:
        """Take acknowledgements; see the protocol."""
        yield from ()
        self.acked.append(asked)
        if isinstance(self.result, Exception):
            raise self.result
        return AckResult(len(asked.subjects)) if self.result is None else self.result

    def stop(self) -> None:
        """End long polls."""

    def body(self, number: int = -1) -> Any:
        """Return the JSON that a request had."""
        return orjson.loads(self.asked[number].message.payload)


class SiteClient:
    """A client of an application in this process."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def post(self, path: str, body: str = "") -> jetstream.Reply:
        """Send a POST; return its answer."""
        answer = self._site.client.post(path, data=body)
        return jetstream.Reply(answer.status_code, answer.mimetype or "", answer.text)


def _made(answer: object) -> Answer | Exception:
    if isinstance(answer, Exception):
        return answer
    if isinstance(answer, int):
        return lambda _: [NatsMessage("", headers=status(answer))]
    if isinstance(answer, Mapping):
        payload = orjson.dumps(answer)
        return lambda _: [NatsMessage("", payload=payload)]
    if isinstance(answer, list):
        return lambda _: answer
    assert callable(answer)
    found: Answer = answer
    return found


def given(
    sequence: int, value: bytes, *, deliveries: int = 1, headers: bytes = b"", pending: int = 0
) -> NatsMessage:
    """Return a message as a pull of the consumer `worker` of ORDERS gives it."""
    at = 1_700_000_000_000_000_000 + sequence
    reply = f"$JS.ACK.ORDERS.worker.{deliveries}.{sequence}.{sequence}.{at}.{pending}"
    return NatsMessage("orders.new", reply, headers, value)
