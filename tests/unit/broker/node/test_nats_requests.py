"""NATS requests of one client of the node protocol: answered, cancelled, bounded, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.broker.node.rpc import nats as rpc
from router.broker.node.rpc.nats import NatsRequests
from router.broker.storage import StoreError
from router.errors import ForbiddenError, OutcomeUnknownError
from router.model import Principal
from router.wire.nats.message import AckResult, NatsMessage
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import MAX_MESSAGE_SIZE

ASKED = npb.NatsRequest(
    message=npb.NatsMessage(subject="a.b", payload=b"x"),
    max_replies=2,
    timeout_ms=1_500,
    principal="anna",
    administers=True,
)


class Service:
    """Answers what a test says; `open` is set when it may, before a request or later."""

    def __init__(self, answer: list[NatsMessage] | AckResult | Exception) -> None:
        self.answer = answer
        self.open = asyncio.Event()
        self.asked: list[tuple[object, ...]] = []
        self.waiting: list[Callable[[Any], None]] = []
        self.cancelled = 0

    def begin_request_for(self, *given: Any) -> Callable[[], None]:
        *asked, done = given
        self.asked.append(tuple(asked))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.open.is_set():
            done(self.answer)
        else:
            self.waiting.append(done)
        return self.cancel

    def cancel(self) -> None:
        self.cancelled += 1

    async def acknowledge_for(self, *asked: object) -> AckResult:
        self.asked.append(asked)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        assert isinstance(self.answer, AckResult)
        return self.answer


Scene = Callable[[NatsRequests, list[npb.CommandAdminResponse]], Awaitable[None]]


def play(scene: Scene) -> list[npb.CommandAdminResponse]:
    responses: list[npb.CommandAdminResponse] = []

    async def run() -> None:
        await scene(NatsRequests(responses.append), responses)

    asyncio.run(run())
    return responses


def answered(answer: list[NatsMessage] | Exception) -> npb.CommandAdminResponse:
    async def scene(requests: NatsRequests, responses: list[npb.CommandAdminResponse]) -> None:
        service = Service(answer)
        service.open.set()
        requests.begin(service, 7, ASKED)
        message = NatsMessage("a.b", payload=b"x")
        assert service.asked == [(Principal("anna"), True, message, 2, 1.5)]

    (response,) = play(scene)
    assert response.request_id == 7
    return response


def test_replies_are_the_answer() -> None:
    found = [NatsMessage("i", "r", b"h", b"p"), NatsMessage("", "", b"", b"")]
    response = answered(found)
    assert [(m.subject, m.reply, m.headers, m.payload) for m in response.nats_messages] == found
    assert not response.HasField("code")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ForbiddenError("no"), "forbidden"),
        (StoreError("full"), "disk-full"),
        (ZeroDivisionError(), "internal"),
        ([NatsMessage("", payload=bytes(MAX_MESSAGE_SIZE))], "bad-request"),
    ],
)
def test_failures_are_answers(failure: list[NatsMessage] | Exception, code: str) -> None:
    response = answered(failure)
    assert (response.code, len(response.nats_messages)) == (code, 0)


def acknowledged(answer: AckResult | Exception, count: int = 3) -> npb.CommandAdminResponse:
    subjects = [f"$JS.ACK.S.c.1.{number}.1.1.1" for number in range(count)]
    asked = npb.NatsAcknowledge(subjects=subjects, payload=b"+ACK", principal="anna", key=True)

    async def scene(requests: NatsRequests, responses: list[npb.CommandAdminResponse]) -> None:
        service = Service(answer)
        service.open.set()
        requests.begin(service, 7, asked)
        async with asyncio.timeout(5):
            while not responses:  # noqa: ASYNC110 - a task answers
                await asyncio.sleep(0)
        for principal, found, payload in service.asked:
            assert principal == Principal("anna", key=True)
            assert (list(found), payload) == (subjects, b"+ACK")  # type: ignore[call-overload]

    (response,) = play(scene)
    assert response.request_id == 7
    return response


def test_acknowledgements_are_answered_by_how_many_were_taken() -> None:
    response = acknowledged(AckResult(3))
    assert (response.acknowledged, response.HasField("code")) == (3, False)
    response = acknowledged(AckResult(2, ForbiddenError("no")))
    assert (response.acknowledged, response.code, response.message) == (2, "forbidden", "no")
    response = acknowledged(OutcomeUnknownError())
    assert (response.HasField("acknowledged"), response.code) == (False, "outcome-unknown")


def test_acknowledgements_of_a_request_are_bounded() -> None:
    assert acknowledged(AckResult(1_000), rpc.MAX_ACKNOWLEDGEMENTS).acknowledged == 1_000
    refused = acknowledged(AckResult(1_001), rpc.MAX_ACKNOWLEDGEMENTS + 1)
    assert (refused.code, refused.HasField("acknowledged")) == ("bad-request", False)


def test_a_request_that_is_cancelled_ends_and_is_not_answered() -> None:
    async def scene(requests: NatsRequests, _: list[npb.CommandAdminResponse]) -> None:
        service = Service([])
        for number in (1, 2):
            requests.begin(service, number, ASKED)
        requests.cancel(1)
        requests.cancel(99)
        assert service.cancelled == 1
        for done in service.waiting:
            done([])

    assert [response.request_id for response in play(scene)] == [2]


def test_requests_end_with_their_client() -> None:
    async def scene(requests: NatsRequests, _: list[npb.CommandAdminResponse]) -> None:
        service = Service([])
        for number in range(3):
            requests.begin(service, number, ASKED)
        requests.begin(service, 3, npb.NatsAcknowledge(payload=b""))
        await asyncio.sleep(0)
        requests.close()
        await asyncio.sleep(0)
        assert service.cancelled == 4

    assert play(scene) == []


def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_NATS_REQUESTS", 1)

    async def scene(requests: NatsRequests, _: list[npb.CommandAdminResponse]) -> None:
        service = Service([])
        requests.begin(service, 1, ASKED)
        requests.begin(service, 2, ASKED)
        requests.begin(None, 3, ASKED)
        requests.close()

    codes = [(response.request_id, response.code) for response in play(scene)]
    assert codes == [(2, "overloaded"), (3, "not-allowed")]
