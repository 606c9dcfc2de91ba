"""Consumers: pull and push, acknowledgements, redelivery, policies, flow control, pauses."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from nats.aio.msg import Msg

from tests.nats.scenarios import shows
from tests.nats.users import CALL_SECONDS, User, failure, payloads, raised, status, token, until

MS = 1_000_000


@shows(
    [
        ["m1"],
        ["m2", "m3"],
        ["m4", "404 No Messages"],
        ["404 No Messages"],
        ["408 Request Timeout"],
        [["1", "1"], ["2", "2"], ["3", "3"], ["4", "4"]],
    ]
)
async def pulling(user: User) -> Any:
    await user.stream()
    await user.fill(4)
    await user.consumer("c")
    found = [
        await user.next("c"),
        await user.next("c", batch=2),
        await user.next("c", batch=5),
        await user.next("c"),
        await user.next("c", no_wait=False, expires=150 * MS),
    ]
    messages = [one for part in found for one in part if not status(one)]
    return [
        *(payloads(part) for part in found),
        [[str(token(one, 5)), str(token(one, 6))] for one in messages],
    ]


@shows([["m1"], ["m2", "m3"], "TimeoutError"])
async def fetching(user: User) -> Any:
    await user.stream()
    await user.fill(3)
    pull = await user.js.pull_subscribe(f"{user.subject}.>", "c", stream=user.name)
    first = await pull.fetch(1, timeout=CALL_SECONDS)
    # nats-py waits for as long, and the first of them must come meanwhile
    rest = await pull.fetch(5, timeout=3)
    for one in first + rest:
        await one.ack_sync(CALL_SECONDS)
    return [payloads(first), payloads(rest), await raised(pull.fetch(1, timeout=0.2))]


@shows([["100 Idle Heartbeat", "408 Request Timeout"], True, "400 Bad Request", ["late"]])
async def heartbeats_of_a_pull(user: User) -> Any:
    await user.stream()
    await user.consumer("c")
    began = time.monotonic()
    found = await user.next("c", no_wait=False, expires=500 * MS, idle_heartbeat=150 * MS)
    took = time.monotonic() - began
    bad = await user.next("c", no_wait=False, expires=100 * MS, idle_heartbeat=200 * MS)
    waiting = asyncio.ensure_future(user.next("c", no_wait=False, expires=20_000 * MS))
    await asyncio.sleep(0.1)
    await user.publish("a", b"late")
    return [
        sorted({status(one) for one in found}),
        0.4 < took < 20,
        status(bad[0])[:15],
        payloads(await waiting),
    ]


@shows(["409 Message Size Exceeds MaxBytes", ["m1", "m2", "409 Message Size Exceeds MaxBytes"]])
async def bytes_of_a_pull(user: User) -> Any:
    await user.stream()
    await user.consumer("c")
    await user.consumer("d")
    await user.fill(3)
    small = await user.next("c", max_bytes=10)
    two = 2 * len(f"{user.subject}.a$JS.ACK.{user.name}.d.1.1.1.{time.time_ns()}.2m1") + 20
    limited = await user.next("d", batch=10, max_bytes=two)
    return [status(small[0]), payloads(limited)]


@shows([["m1", "m2", "409 Consumer Deleted"], ["503 "], ["409 Exceeded MaxWaiting"]])
async def pulls_that_end_early(user: User) -> Any:
    await user.stream()
    await user.consumer("c", max_waiting=1)
    await user.fill(2)
    waiting = asyncio.ensure_future(user.next("c", batch=5, no_wait=False, expires=20_000 * MS))

    async def is_waiting() -> bool:
        return bool((await user.consumer_info("c"))["num_waiting"] == 1)

    await until(is_waiting)
    refused = await user.next("c", no_wait=False, expires=20_000 * MS)
    await user.api("CONSUMER.DELETE.$.c")
    return [payloads(await waiting), payloads(await user.next("c")), payloads(refused)]


@shows([["m1", 1], ["m1", 2], ["m1", 3], {"pending": 0, "redelivered": 0, "floor": 1}])
async def nak(user: User) -> Any:
    await user.stream()
    await user.fill(1)
    await user.consumer("c", ack_wait=20_000 * MS)
    found: list[Any] = []
    for answer in (b"-NAK", b'-NAK {"delay": 200000000}', b"+ACK"):
        (message,) = await user.next("c", no_wait=False, expires=20_000 * MS)
        found.append([message.data.decode(), token(message, 4)])
        await user.nc.request(message.reply, answer, CALL_SECONDS)
    info = await user.consumer_info("c")
    state = {"pending": info["num_ack_pending"], "redelivered": info["num_redelivered"]}
    return [*found, state | {"floor": info["ack_floor"]["stream_seq"]}]


@shows([["m1", 1], ["m2", 1], ["m1", 2], ["404 No Messages"], [0, 0, 2]])
async def delayed_nak_holds_up_nothing(user: User) -> Any:
    await user.stream()
    await user.fill(2)
    # If the machine is busy for longer than the first delay, the second one is for it.
    name, delay = "short", 0.5
    while True:
        await user.consumer(name)
        (first,) = await user.next(name)
        began = time.monotonic()
        body = b'-NAK {"delay": %d}' % round(delay * 1_000 * MS)
        await user.nc.request(first.reply, body, CALL_SECONDS)
        (second,) = await user.next(name)
        if time.monotonic() - began < delay or name == "long":
            break
        name, delay = "long", 10.0
    (again,) = await user.next(name, no_wait=False, expires=20_000 * MS)
    assert time.monotonic() - began > delay - 0.1
    for one in (second, again):
        await one.ack_sync(CALL_SECONDS)
    info = await user.consumer_info(name)
    shown = [[one.data.decode(), token(one, 4)] for one in (first, second, again)]
    return [
        *shown,
        payloads(await user.next(name)),
        [info["num_ack_pending"], info["num_redelivered"], info["ack_floor"]["stream_seq"]],
    ]


@shows([["m1", "m2"], ["404 No Messages"], 2])
async def terminated(user: User) -> Any:
    await user.stream()
    await user.fill(2)
    await user.consumer("c", ack_wait=150 * MS)
    found = await user.next("c", batch=2)
    await user.nc.request(found[0].reply, b"+TERM", CALL_SECONDS)
    await user.nc.request(found[1].reply, b"+TERM with a reason", CALL_SECONDS)
    await asyncio.sleep(0.4)
    info = await user.consumer_info("c")
    return [payloads(found), payloads(await user.next("c")), info["ack_floor"]["stream_seq"]]


@shows([["m1", 1], "404 No Messages", ["m1", 2], True])
async def in_progress(user: User) -> Any:
    await user.stream()
    await user.fill(1)
    # If the machine is busy for longer than the first wait, the second one is for it.
    name, seconds = "short", 0.7
    while True:
        await user.consumer(name, ack_wait=round(seconds * 1_000) * MS)
        times = [time.monotonic()]
        (message,) = await user.next(name)
        for _ in range(4):
            await asyncio.sleep(seconds * 0.35)
            times.append(time.monotonic())
            await user.nc.request(message.reply, b"+WPI", CALL_SECONDS)
        nothing = await user.next(name)
        steps = itertools.pairwise([*times, time.monotonic()])
        # Each is counted from before it was sent until the next one was answered.
        if max(after - before for before, after in steps) < seconds * 0.6 or name == "long":
            break
        name, seconds = "long", 10.0
    (again,) = await user.next(name, no_wait=False, expires=20_000 * MS)
    waited = time.monotonic() - times[-1]
    return [
        [message.data.decode(), token(message, 4)],
        status(nothing[0]),
        [again.data.decode(), token(again, 4)],
        waited > seconds * 0.7,
    ]


@shows([[1, 2, 3], "408 Request Timeout", {"pending": 0, "waiting": 0}, "m2"])
async def deliveries_at_most(user: User) -> Any:
    await user.stream()
    await user.fill(1)
    await user.consumer("c", ack_wait=100 * MS, max_deliver=3)
    found: list[int] = []
    for _ in range(3):
        (message,) = await user.next("c", no_wait=False, expires=20_000 * MS)
        found.append(token(message, 4))
    none = await user.next("c", no_wait=False, expires=400 * MS)
    info = await user.consumer_info("c")
    await user.publish("a", b"m2")
    (message,) = await user.next("c")
    return [
        found,
        status(none[0]),
        {"pending": info["num_pending"], "waiting": info["num_waiting"]},
        message.data.decode(),
    ]


@shows([[1, 2, 3, 4], [True, True, True]])
async def backoff(user: User) -> Any:
    await user.stream()
    await user.fill(1)
    await user.consumer("c", backoff=[100 * MS, 300 * MS, 500 * MS], max_deliver=4)
    counts: list[int] = []
    times: list[float] = []
    start = time.monotonic()
    for _ in range(4):
        (message,) = await user.next("c", no_wait=False, expires=6_000 * MS)
        counts.append(token(message, 4))
        times.append(time.monotonic() - start)
    # A message may come late, and the next one then comes sooner after it.
    least = itertools.accumulate([0.1, 0.3, 0.5])
    return [counts, [after > one * 0.9 for after, one in zip(times[1:], least, strict=True)]]


@shows([["m1", "m2"], "408 Request Timeout", ["m3"], 2])
async def unacknowledged_at_most(user: User) -> Any:
    await user.stream()
    await user.fill(4)
    await user.consumer("c", max_ack_pending=2)
    first = await user.next("c", batch=2)
    none = await user.next("c", no_wait=False, expires=150 * MS)
    await first[0].ack_sync(CALL_SECONDS)
    more = await user.next("c", no_wait=False, expires=20_000 * MS)
    info = await user.consumer_info("c")
    return [payloads(first), status(none[0]), payloads(more), info["num_ack_pending"]]


@shows(
    {
        "all": ["m1", "m2", "m3", "m4"],
        "last": ["m4"],
        "new": [],
        "last_per_subject": ["m3", "m4"],
        "by_start_sequence": ["m3", "m4"],
        "by_start_time": ["m3", "m4"],
    }
)
async def where_to_begin(user: User) -> Any:
    await user.stream()
    for number, tail in enumerate("aa", 1):
        await user.publish(tail, b"m%d" % number)
    await asyncio.sleep(0.05)
    await user.publish("a", b"m3")
    await user.publish("b", b"m4")
    third = (await user.api("STREAM.MSG.GET.$", {"seq": 3}))["message"]["time"]
    policies: dict[str, dict[str, Any]] = {
        "all": {},
        "last": {},
        "new": {},
        "last_per_subject": {"filter_subject": f"{user.subject}.>"},
        "by_start_sequence": {"opt_start_seq": 3},
        "by_start_time": {"opt_start_time": third},
    }
    found = {}
    for policy, more in policies.items():
        await user.consumer(policy, deliver_policy=policy, **more)
        got = await user.next(policy, batch=10)
        found[policy] = [one.data.decode() for one in got if not status(one)]
    return found


@shows([["m1", "m4"], ["m1", "m2", "m4"], ["m2"], [2, 0], ["m5"]])
async def filters(user: User) -> Any:
    await user.stream()
    for number, tail in enumerate(("a", "b.x", "c", "a"), 1):
        await user.publish(tail, b"m%d" % number)
    subject = user.subject
    await user.consumer("one", filter_subject=f"{subject}.a")
    await user.consumer("two", filter_subjects=[f"{subject}.a", f"{subject}.b.>"])
    await user.consumer("three", filter_subject=f"{subject}.*.x")
    pending = (await user.consumer_info("one"))["num_pending"]
    found = [await user.next(name, batch=9) for name in ("one", "two", "three")]
    after = (await user.consumer_info("one"))["num_pending"]
    changed = {"durable_name": "three", "ack_policy": "explicit", "filter_subject": f"{subject}.c"}
    await user.api("CONSUMER.CREATE.$.three", {"stream_name": user.name, "config": changed})
    await user.publish("c", b"m5")
    now = await user.next("three", no_wait=False, expires=20_000 * MS)
    shown = [[one.data.decode() for one in part if not status(one)] for part in found]
    return [*shown, [pending, after], [one.data.decode() for one in now if not status(one)][:1]]


@shows([["", "2", {"A": "b"}], ["", "0", None]])
async def headers_only(user: User) -> Any:
    await user.stream()
    await user.publish("a", b"m1", {"A": "b"})
    await user.publish("a", b"")
    await user.consumer("c", headers_only=True)
    found = []
    for one in await user.next("c", batch=2):
        headers = dict(one.headers or {})
        size = headers.pop("Nats-Msg-Size")
        found.append([one.data.decode(), size, headers or None])
    return found


@shows([["m1", "m2", "m3"], 3, True])
async def pushing(user: User) -> Any:
    await user.stream()
    await user.fill(2)
    subscription = await user.js.subscribe(f"{user.subject}.>", stream=user.name, durable="c")
    await user.publish("a", b"m3")
    found = [await subscription.next_msg(CALL_SECONDS) for _ in range(3)]
    for one in found:
        await one.ack_sync(CALL_SECONDS)
    info = await user.consumer_info("c")
    return [payloads(found), info["ack_floor"]["stream_seq"], info["push_bound"]]


@shows([["m1", 1], ["m1", 2]])
async def pushing_again(user: User) -> Any:
    await user.stream()
    await user.fill(1)
    inbox = user.nc.new_inbox()
    subscription = await user.nc.subscribe(inbox)
    await user.consumer("c", deliver_subject=inbox, ack_wait=200 * MS, max_deliver=2)
    found = [await subscription.next_msg(CALL_SECONDS) for _ in range(2)]
    await asyncio.sleep(0.5)
    assert subscription.pending_msgs == 0
    await found[1].ack_sync(CALL_SECONDS)
    return [[one.data.decode(), token(one, 4)] for one in found]


@shows([False, True, False, ["m1", "m2"], ["m3"]])
async def pushing_waits_for_interest(user: User) -> Any:
    await user.stream()
    await user.fill(2)
    inbox = user.nc.new_inbox()
    await user.consumer("c", deliver_subject=inbox)
    bound = [bool((await user.consumer_info("c")).get("push_bound"))]
    subscription = await user.nc.subscribe(inbox)
    found = [await subscription.next_msg(CALL_SECONDS) for _ in range(2)]
    bound.append(bool((await user.consumer_info("c")).get("push_bound")))
    await subscription.unsubscribe()

    async def gone() -> bool:
        return not (await user.consumer_info("c")).get("push_bound")

    await until(gone)
    bound.append(False)
    await user.publish("a", b"m3")
    again = await user.nc.subscribe(inbox)
    late = await again.next_msg(CALL_SECONDS)
    return [*bound, payloads(found), payloads([late])]


@shows([40, [404, 10014]])
async def pushing_to_a_group(user: User) -> Any:
    await user.stream()
    inbox = user.nc.new_inbox()
    await user.consumer("c", deliver_subject=inbox, deliver_group="g")
    members = [await user.nc.subscribe(inbox, queue="g") for _ in range(2)]
    await user.fill(40)

    async def all_there() -> bool:
        return sum(one.pending_msgs for one in members) >= 40

    await until(all_there)
    counts = [one.pending_msgs for one in members]
    wrong = await raised(user.js.consumer_info(user.name, "none"))
    return [sum(counts), wrong]


@shows([["100 Idle Heartbeat"], True])
async def heartbeats_of_a_push(user: User) -> Any:
    await user.stream()
    inbox = user.nc.new_inbox()
    subscription = await user.nc.subscribe(inbox)
    await user.consumer("c", deliver_subject=inbox, idle_heartbeat=150 * MS)
    beats = [await subscription.next_msg(CALL_SECONDS) for _ in range(2)]
    names = {"Nats-Last-Consumer", "Nats-Last-Stream"}
    return [sorted({status(one) for one in beats}), names <= set(beats[0].headers or {})]


@shows([1_000, True])
async def flow_control(user: User) -> Any:
    """Large messages: the server asks before its window is full, and goes on when answered."""
    await user.stream()
    count, body = 1_000, b"x" * 4_000
    for _ in range(count - 1):
        await user.nc.publish(f"{user.subject}.a", body)
    await user.js.publish(f"{user.subject}.a", body)
    inbox = user.nc.new_inbox()
    subscription = await user.nc.subscribe(inbox)
    await user.consumer(
        "c",
        deliver_subject=inbox,
        ack_policy="none",
        flow_control=True,
        idle_heartbeat=500 * MS,
    )
    received, controls = 0, 0
    while received < count:
        message: Msg = await subscription.next_msg(CALL_SECONDS)
        if status(message).startswith("100"):
            reply = message.reply or (message.headers or {}).get("Nats-Consumer-Stalled")
            if reply:
                controls += 1
                await user.nc.publish(reply)
        else:
            received += 1
    return [received, controls > 0]


@shows([300, True])
async def ordered(user: User) -> Any:
    await user.stream()
    for _ in range(299):
        await user.nc.publish(f"{user.subject}.a", b"x")
    await user.js.publish(f"{user.subject}.a", b"x")
    subscription = await user.js.subscribe(f"{user.subject}.>", ordered_consumer=True)
    found = [await subscription.next_msg(CALL_SECONDS) for _ in range(300)]
    sequences = [token(one, 5) for one in found]
    return [len(found), sequences == list(range(1, 301))]


@shows([[3, 0], ["m4", "m5"], 5])
async def acknowledging_all_before(user: User) -> Any:
    await user.stream()
    await user.fill(5)
    await user.consumer("c", ack_policy="all")
    found = await user.next("c", batch=3)
    await found[2].ack_sync(CALL_SECONDS)
    info = await user.consumer_info("c")
    first = [info["ack_floor"]["stream_seq"], info["num_ack_pending"]]
    more = await user.next("c", batch=2)
    await more[1].ack_sync(CALL_SECONDS)
    info = await user.consumer_info("c")
    return [first, payloads(more), info["ack_floor"]["stream_seq"]]


@shows([["m1", "m2"], {"delivered": 2, "pending": 0, "floor": 2}])
async def acknowledging_nothing(user: User) -> Any:
    await user.stream()
    await user.fill(2)
    await user.consumer("c", ack_policy="none")
    found = await user.next("c", batch=2)
    info = await user.consumer_info("c")
    return [
        payloads(found),
        {
            "delivered": info["delivered"]["stream_seq"],
            "pending": info["num_ack_pending"],
            "floor": info["ack_floor"]["stream_seq"],
        },
    ]


@shows([["m1"], ["m2"], 1])
async def acknowledging_and_pulling_the_next(user: User) -> Any:
    await user.stream()
    await user.fill(2)
    await user.consumer("c")
    (first,) = await user.next("c")
    inbox = user.nc.new_inbox()
    subscription = await user.nc.subscribe(inbox)
    await user.nc.publish(first.reply, b"+NXT", reply=inbox)
    second = await subscription.next_msg(CALL_SECONDS)
    info = await user.consumer_info("c")
    return [payloads([first]), payloads([second]), info["ack_floor"]["stream_seq"]]


@shows([{"floor": [2, 2], "pending": 1, "delivered": [3, 3]}, ["c", 2]])
async def acknowledging_out_of_order(user: User) -> Any:
    await user.stream()
    for tail in "abc":
        await user.publish(tail, tail.encode())
    await user.consumer("c")
    first, second, third = await user.next("c", batch=3)
    for one in (second, second, first):
        await user.nc.request(one.reply, b"+ACK", CALL_SECONDS)
    info = await user.consumer_info("c")
    await user.nc.request(third.reply, b"-NAK", CALL_SECONDS)
    (again,) = await user.next("c", no_wait=False, expires=20_000 * MS)
    return [
        {
            "floor": [info["ack_floor"][one] for one in ("consumer_seq", "stream_seq")],
            "pending": info["num_ack_pending"],
            "delivered": [info["delivered"][one] for one in ("consumer_seq", "stream_seq")],
        },
        [again.data.decode(), token(again, 4)],
    ]


def _moment(seconds: float) -> str:
    """Return the time in so many seconds, as JSON has it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@shows([[True, True], "408 Request Timeout", [False, True], ["m1"]])
async def pausing(user: User) -> Any:
    await user.stream()
    await user.fill(1)
    await user.consumer("c")
    later = _moment(3_600)
    paused = await user.api("CONSUMER.PAUSE.$.c", {"pause_until": later})
    info = await user.consumer_info("c")
    none = await user.next("c", no_wait=False, expires=200 * MS)
    resumed = await user.api("CONSUMER.PAUSE.$.c", {})
    after = await user.consumer_info("c")
    return [
        [paused["paused"], info["paused"]],
        status(none[0]),
        [resumed["paused"], not after.get("paused")],
        payloads(await user.next("c")),
    ]


@shows([["m1"], True])
async def a_pause_ends_by_itself(user: User) -> Any:
    await user.stream()
    await user.fill(1)
    await user.consumer("c")
    began = time.monotonic()
    later = _moment(1.5)
    await user.api("CONSUMER.PAUSE.$.c", {"pause_until": later})
    found = await user.next("c", no_wait=False, expires=8_000 * MS)
    return [payloads(found), time.monotonic() - began > 0.8]


@shows(["ok", [404, 10014]])
async def consumers_that_are_not_used_go(user: User) -> Any:
    await user.stream()
    body = {
        "stream_name": user.name,
        "config": {"ack_policy": "explicit", "name": "e", "inactive_threshold": 300 * MS},
    }
    made = failure(await user.api("CONSUMER.CREATE.$.e", body))

    async def gone() -> bool:
        return bool(failure(await user.consumer_info("e")) != "ok")

    await until(gone)
    return [made, failure(await user.consumer_info("e"))]


@shows([["2", "3"], ["m2", "m3"], ["m2", 2]])
async def messages_deleted_before_they_are_delivered(user: User) -> Any:
    await user.stream()
    await user.fill(3)
    await user.consumer("c", ack_wait=200 * MS)
    await user.api("STREAM.MSG.DELETE.$", {"seq": 1})
    found = await user.next("c", batch=2)
    (again, *_) = await user.next("c", no_wait=False, expires=20_000 * MS)
    return [
        [str(token(one, 5)) for one in found],
        payloads(found),
        [again.data.decode(), token(again, 4)],
    ]


_WAITS = {"no_wait": False, "expires": 300_000_000}


@shows(
    [
        "ok",
        ["400 Bad Request - Priority Group missing"],
        ["400 Bad Request - Invalid Priority Group"],
        [["m1", True], ["m2", True]],
        ["408 Request Timeout"],
        ["423 Nats-Pin-Id mismatch"],
        [["m3", True]],
        [["g", True]],
        ["io.nats.jetstream.api.v1.consumer_unpin_response", [400, 10160], [400, 10162]],
        [["g", False]],
        [["m4", False]],
    ]
)
async def a_pinned_client(user: User) -> Any:
    """Messages go to the client that has the pin, until it is unpinned."""
    await user.stream()
    await user.fill(6)
    groups = {"priority_groups": ["g", "h"], "priority_policy": "pinned_client"}
    found: list[Any] = [failure(await user.consumer("c", **groups))]
    found += [payloads(await user.next("c")), payloads(await user.next("c", group="x"))]
    first = await user.next("c", group="g", batch=2)
    pin = (first[0].headers or {})["Nats-Pin-Id"]

    def pinned(messages: list[Msg]) -> list[Any]:
        return [[m.data.decode(), (m.headers or {})["Nats-Pin-Id"] == pin] for m in messages]

    async def groups_of() -> list[Any]:
        shown = (await user.consumer_info("c"))["priority_groups"]
        return [[one["group"], one.get("pinned_client_id") == pin] for one in shown]

    found += [pinned(first), payloads(await user.next("c", group="g", **_WAITS))]
    found.append(payloads(await user.next("c", group="g", id="other")))
    found.append(pinned(await user.next("c", group="g", id=pin)))
    found.append(await groups_of())
    replies = [await user.api("CONSUMER.UNPIN.$.c", {"group": one}) for one in ("g", "x", "a.b")]
    found.append([replies[0]["type"], *(failure(one) for one in replies[1:])])
    found.append(await groups_of())
    return [*found, pinned(await user.next("c", group="g"))]


@shows(
    [
        ["408 Request Timeout"],
        ["m1"],
        ["408 Request Timeout"],
        ["m2"],
        ["m3"],
        ["400 Bad Request - Not a Pinned Client Priority consumer"],
    ]
)
async def clients_of_an_overflow(user: User) -> Any:
    """A request gets messages once so many wait, or are not acknowledged."""
    await user.stream()
    await user.fill(4)
    await user.consumer("c", priority_groups=["g"], priority_policy="overflow")
    both = {"min_ack_pending": 2, "min_pending": 4}
    bounds: list[dict[str, Any]] = [
        {"min_pending": 5},
        {"min_pending": 4},
        both,
        {},
        both,
        {"id": "x"},
    ]
    return [payloads(await user.next("c", group="g", **_WAITS, **one)) for one in bounds]


@shows([["m1", "m2"], ["m3"], "ok"])
async def clients_of_lower_numbers(user: User) -> Any:
    """A client of a lower number gets what comes, also if it asked later."""
    await user.stream()
    made = await user.consumer("c", priority_groups=["g"], priority_policy="prioritized")
    late = await _asked(user, priority=2)
    early = await _asked(user, priority=1, batch=2)
    await user.fill(3)
    found = [[(await early.next_msg(CALL_SECONDS)).data.decode() for _ in range(2)]]
    found.append([(await late.next_msg(CALL_SECONDS)).data.decode()])
    return [*found, failure(made)]


async def _asked(user: User, **body: Any) -> Any:
    """Return a subscription whose pull request the server has taken."""
    before = (await user.consumer_info("c"))["num_waiting"]
    inbox = user.nc.new_inbox()
    subscription = await user.nc.subscribe(inbox)
    request = json.dumps({"group": "g", "expires": 60_000_000_000} | body).encode()
    await user.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{user.name}.c", request, inbox)

    async def waits() -> bool:
        return bool((await user.consumer_info("c"))["num_waiting"] == before + 1)

    await until(waits)
    return subscription
