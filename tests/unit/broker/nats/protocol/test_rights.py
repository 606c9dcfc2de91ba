"""Which right each call of the JetStream API needs, as docs/nats.md has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.access.permissions import Right
from router.wire.nats.headers import status_code
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.consumers.test_consumers import Restricted
from tests.unit.broker.nats.serving import CALLER, Inbox, answer, serving

HIDDEN, FORBIDDEN = 10059, 10051
STREAM = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
CHANGED = {**STREAM, "description": "changed"}
NEW = {"name": "NEW", "subjects": ["new.>"]}
CONSUMER = {"stream_name": "S", "config": {"durable_name": "d", "ack_policy": "explicit"}}
UNNAMED = {"stream_name": "S", "config": {"ack_policy": "explicit"}}
CALLS: list[tuple[str, Any, Right]] = [
    ("STREAM.INFO.S", None, Right.VIEW),
    ("STREAM.INFO.S", {"subjects_filter": ">"}, Right.VIEW),
    ("CONSUMER.NAMES.S", None, Right.VIEW),
    ("CONSUMER.LIST.S", None, Right.VIEW),
    ("CONSUMER.INFO.S.c", None, Right.VIEW),
    ("STREAM.CREATE.S", STREAM, Right.VIEW),
    ("STREAM.CREATE.NEW", NEW, Right.CREATE),
    ("STREAM.UPDATE.S", CHANGED, Right.MANAGE),
    ("STREAM.PURGE.S", None, Right.MANAGE),
    ("STREAM.PURGE.S", {"filter": "s.a"}, Right.MANAGE),
    ("STREAM.MSG.DELETE.S", {"seq": 1}, Right.MANAGE),
    ("STREAM.DELETE.S", None, Right.DELETE),
    ("STREAM.MSG.GET.S", {"seq": 1}, Right.SUBSCRIBE),
    ("STREAM.MSG.GET.S", {"last_by_subj": "s.a"}, Right.SUBSCRIBE),
    ("CONSUMER.CREATE.S", UNNAMED, Right.SUBSCRIBE),
    ("CONSUMER.CREATE.S.d", CONSUMER, Right.SUBSCRIBE),
    ("CONSUMER.DURABLE.CREATE.S.d", CONSUMER, Right.SUBSCRIBE),
    ("CONSUMER.PAUSE.S.c", {"pause_until": "2090-01-01T00:00:00Z"}, Right.SUBSCRIBE),
    ("CONSUMER.DELETE.S.c", None, Right.SUBSCRIBE),
]


@pytest.mark.parametrize(("subject", "body", "right"), CALLS)
async def test_each_call_needs_its_right(
    tmp_path: Path, subject: str, body: Any, right: Right
) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    async with serving(tmp_path) as served:
        await served.stream(allow_direct=True)
        await served.publish(b"1", b"2")
        await served.consumer("c")

        async def error_of(*rights: Right) -> int:
            reply = await answer(served.server.api, Restricted(*rights), subject, data)
            assert reply is not None
            return int(reply.to_json().get("error", {}).get("err_code", 0))

        others = [one for one in Right if one is not right]
        if right is not Right.VIEW:
            assert await error_of(*others), "every right but the one"
        before = await served.call("STREAM.INFO.S")
        hidden = await error_of()
        assert hidden
        if not subject.startswith(("STREAM.CREATE", "STREAM.UPDATE")):
            assert hidden == HIDDEN
        after = await served.call("STREAM.INFO.S")
        assert (before["state"], before["config"]) == (after["state"], after["config"])
        assert await error_of(Right.VIEW, right) == 0


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("$JS.API.DIRECT.GET.S", b'{"seq":1}'),
        ("$JS.API.DIRECT.GET.S", b'{"batch":5,"seq":1}'),
        ("$JS.API.DIRECT.GET.S", b'{"multi_last":["s.>"]}'),
        ("$JS.API.DIRECT.GET.S.s.a", b""),
        ("$JS.API.CONSUMER.MSG.NEXT.S.c", b""),
    ],
)
async def test_messages_need_the_right_to_subscribe(
    tmp_path: Path, subject: str, body: bytes
) -> None:
    async with serving(tmp_path) as served:
        await served.stream(allow_direct=True)
        await served.publish(b"1", b"2")
        await served.consumer("c")
        asked = NatsMessage(subject, payload=body)
        others = [one for one in Right if one is not Right.SUBSCRIBE]
        for caller in (Restricted(), Restricted(*others)):
            [refused] = await served.request(caller, asked, 1, 5)
            assert status_code(refused.headers) == 503
        reader = Restricted(Right.VIEW, Right.SUBSCRIBE)
        [found] = await served.request(reader, asked, 1, 5)
        assert found.payload in (b"1", b"2")


@pytest.mark.parametrize(
    ("subject", "body", "right"),
    [
        ("$JS.API.STREAM.SNAPSHOT.S", {"deliver_subject": "_INBOX.d.1"}, Right.SUBSCRIBE),
        ("$JS.API.STREAM.RESTORE.NEW", {"config": NEW}, Right.CREATE),
    ],
)
async def test_archives_need_the_rights_of_their_streams(
    tmp_path: Path, subject: str, body: Any, right: Right
) -> None:
    request = NatsMessage(subject, payload=json.dumps(body).encode())
    async with serving(tmp_path) as served:
        await served.stream()

        async def error_of(*rights: Right) -> int:
            [reply] = await served.request(Restricted(*rights), request, 1, 10)
            return int(json.loads(reply.payload).get("error", {}).get("err_code", 0))

        assert await error_of() in {HIDDEN, FORBIDDEN}
        assert await error_of(*(one for one in Right if one is not right)) == FORBIDDEN
        assert await error_of(Right.VIEW, right) == 0


async def test_lists_leave_out_what_the_caller_may_not_see(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        for call in ("STREAM.NAMES", "STREAM.LIST", "INFO"):
            for body in (b"", b'{"subject":"s.a"}'):
                if call == "INFO" and body:
                    continue
                reply = await answer(served.server.api, Restricted(), call, body)
                assert reply is not None
                shown = reply.to_json()
                assert not shown.get("streams"), shown
                assert not shown.get("total")


@pytest.mark.parametrize("kind", [b"", b"-NAK", b"+TERM", b"+WPI", b"+NXT"])
async def test_acknowledgements_need_the_right_to_subscribe(tmp_path: Path, kind: bytes) -> None:
    async with serving(tmp_path) as served:
        await served.stream()
        await served.publish(b"1", b"2")
        await served.consumer("c")
        [message] = await served.pull("c", 1)
        before = await served.info("c")
        inbox = Inbox()
        served.hub.subscribe("mine", inbox)
        others = [one for one in Right if one is not Right.SUBSCRIBE]
        forged = NatsMessage(message.reply, "mine", b"", kind)
        served.hub.publish(forged, caller=Restricted(*others))
        after = await served.info("c")
        for name in ("num_ack_pending", "ack_floor", "num_waiting", "num_redelivered"):
            assert before[name] == after[name]
        assert not inbox.messages
        # What the broker itself would send there does nothing either.
        served.hub.publish(forged)
        assert (await served.info("c"))["num_ack_pending"] == 1


@pytest.mark.parametrize("subject", ["_INBOX.>", "_INBOX.*.x", ">", "*.>", "*.*", "_INBOX.a"])
async def test_a_stream_takes_the_inboxes_of_others_only_for_administrators(
    tmp_path: Path, subject: str
) -> None:
    async with serving(tmp_path) as served:
        caller = Restricted(*Right)

        async def error_of(call: str, name: str, *subjects: str, by: Any = caller) -> int:
            config = {"name": name, "subjects": subjects, "no_ack": True}
            body = json.dumps(config).encode()
            reply = await answer(served.server.api, by, f"{call}.{name}", body)
            assert reply is not None
            return int(reply.to_json().get("error", {}).get("err_code", 0))

        assert await error_of("STREAM.CREATE", "NEW", subject) == FORBIDDEN
        assert await error_of("STREAM.CREATE", "S", "s.>") == 0
        assert await error_of("STREAM.UPDATE", "S", subject) == FORBIDDEN
        assert served.server.stream_for("_INBOX.a.x") is None
        assert served.server.stream_for("_INBOX.a") is None
        assert await error_of("STREAM.UPDATE", "S", subject, by=CALLER) == 0
