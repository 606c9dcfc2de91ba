"""Publishing to streams: answers, duplicates, expectations, rollup, and what limits do."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.nats.scenarios import shows
from tests.nats.users import CALL_SECONDS, User, failure, raised, until


@shows([[1, 2, 3], "NoStreamResponseError", "BadRequestError"])
async def publish_acks(user: User) -> Any:
    await user.stream()
    acks = [await user.js.publish(f"{user.subject}.{tail}", b"x") for tail in "aba"]
    assert {ack.stream for ack in acks} == {user.name}
    wrong = user.js.publish(f"{user.subject}.a", b"x", stream="another")
    nowhere = user.js.publish("no.stream.has.this", b"x")
    found = [await raised(nowhere), await raised(wrong)]
    return [
        [ack.seq for ack in acks],
        found[0],
        "BadRequestError" if found[1] == [400, 10060] else found[1],
    ]


@shows([["1", None], ["1", True], ["2", None], ["3", None], 3])
async def duplicates(user: User) -> Any:
    await user.stream(duplicate_window=3_000_000_000)
    found: list[list[Any]] = []

    async def publish(key: str) -> bool:
        ack = await user.js.publish(f"{user.subject}.a", b"x", headers={"Nats-Msg-Id": key})
        found.append([str(ack.seq), ack.duplicate])
        return not ack.duplicate

    for key in ("one", "one", "two"):
        await publish(key)
    kept = len(found)
    await until(lambda: publish("one"))  # the window has passed
    return [*found[:kept], found[-1], (await user.state())["messages"]]


@shows(
    {
        "last sequence": [3, [400, 10071], 4],
        "last message": [[400, 10070], 5],
        "stream": [[400, 10060], 6],
        "last of subject": [[400, 10071], 7, [400, 10071], 8],
        "last of another subject": [[400, 10071], 9],
        "sequence that is none": "refused",
    }
)
async def expectations(user: User) -> Any:
    await user.stream()
    await user.publish("a", b"1", {"Nats-Msg-Id": "first"})
    await user.publish("b", b"2")

    async def expect(tail: str = "a", **headers: str) -> Any:
        named = {"Nats-" + name.replace("_", "-"): value for name, value in headers.items()}
        return await user.publish(tail, b"x", named)

    found: dict[str, Any] = {
        "last sequence": [
            await expect(Expected_Last_Sequence="2"),
            await expect(Expected_Last_Sequence="2"),
            await expect(Expected_Last_Sequence="3", Msg_Id="second"),
        ],
        "last message": [
            await expect(Expected_Last_Msg_Id="first"),
            await expect(Expected_Last_Msg_Id="second"),
        ],
        "stream": [
            await expect(Expected_Stream="another"),
            await expect(Expected_Stream=user.name),
        ],
        "last of subject": [
            await expect(Expected_Last_Subject_Sequence="1"),
            await expect(Expected_Last_Subject_Sequence="6"),
            await expect("new", Expected_Last_Subject_Sequence="1"),
            await expect("new", Expected_Last_Subject_Sequence="0"),
        ],
    }
    other = {"Expected_Last_Subject_Sequence_Subject": f"{user.subject}.new"}
    found["last of another subject"] = [
        await expect("c", Expected_Last_Subject_Sequence="7", **other),
        await expect("c", Expected_Last_Subject_Sequence="8", **other),
    ]
    wrong = await expect(Expected_Last_Sequence="ten")
    found["sequence that is none"] = "refused" if isinstance(wrong, list) else wrong
    return found


@shows([[3, ["a", "b"]], [1, ["all"]], [500, 10111]])
async def rollup(user: User) -> Any:
    await user.stream(allow_rollup_hdrs=True)
    for tail in "aab":
        await user.publish(tail, b"x")
    await user.publish("a", b"x", {"Nats-Rollup": "sub"})
    await user.publish("b", b"x")
    state = await user.state(subjects_filter=">")
    first = [state["messages"], sorted(one.rpartition(".")[2] for one in state["subjects"])]
    await user.publish("all", b"x", {"Nats-Rollup": "all"})
    state = await user.state(subjects_filter=">")
    second = [state["messages"], [one.rpartition(".")[2] for one in state["subjects"]]]
    return [first, second, await user.publish("a", b"x", {"Nats-Rollup": "some"})]


@shows([[500, 10111], "ok", 2])
async def rollup_that_is_not_allowed(user: User) -> Any:
    await user.stream(allow_rollup_hdrs=False)
    refused = await user.publish("a", b"x", {"Nats-Rollup": "sub"})
    await user.stream(allow_rollup_hdrs=False)
    accepted = await user.publish("a", b"x")
    return [refused, "ok" if accepted == 1 else accepted, await user.publish("a", b"x")]


@shows([[3, 5, 3, "m3"], [2, 5]])
async def messages_at_most(user: User) -> Any:
    await user.stream(max_msgs=3)
    await user.fill(5)
    state = await user.state()
    first = ((await user.js.get_msg(user.name, seq=state["first_seq"])).data or b"").decode()
    found = [state["messages"], state["last_seq"], state["first_seq"], first]
    await user.api("STREAM.UPDATE.$", state_config(user, max_msgs=2))
    state = await user.state()
    return [found, [state["messages"], state["last_seq"]]]


def state_config(user: User, **config: Any) -> dict[str, Any]:
    """Return a configuration of the user's stream."""
    return {"name": user.name, "subjects": [f"{user.subject}.>"]} | config


@shows([1, 2, [503, 10077], 2, 3])
async def messages_at_most_with_new_ones_discarded(user: User) -> Any:
    await user.stream(max_msgs=2, discard="new")
    found = [await user.publish("a", b"x") for _ in range(3)]
    found.append((await user.state())["messages"])
    await user.api("STREAM.MSG.DELETE.$", {"seq": 1})
    return [*found, await user.publish("a", b"x")]


@shows([True, True, [503, 10077]])
async def bytes_at_most(user: User) -> Any:
    await user.stream(max_bytes=5_000)
    for _ in range(20):
        await user.publish("a", b"x" * 1_000)
    state = await user.state()
    found = [0 < state["messages"] < 5, state["bytes"] <= 5_000]
    await user.api("STREAM.UPDATE.$", state_config(user, max_bytes=5_000, discard="new"))
    last: Any = 0
    for _ in range(6):
        last = await user.publish("a", b"x" * 1_000)
    return [*found, last]


@shows([[1, [400, 10054]], 1])
async def sizes_at_most(user: User) -> Any:
    await user.stream(max_msg_size=100)
    found = [await user.publish("a", b"x" * size) for size in (50, 101)]
    return [found, (await user.state())["messages"]]


@shows([0, 3, 4])
async def ages_at_most(user: User) -> Any:
    await user.stream(max_age=500_000_000, duplicate_window=100_000_000)
    await user.fill(3)

    async def empty() -> bool:
        return bool((await user.state())["messages"] == 0)

    await until(empty)
    state = await user.state()
    found = [state["messages"], state["last_seq"]]
    return [*found, await user.publish("a")]


@shows([4, {"a": 2, "b": 1, "c": 1}, [503, 10077], 8])
async def messages_of_a_subject_at_most(user: User) -> Any:
    await user.stream(max_msgs_per_subject=2)
    for tail in "aaaabc":
        await user.publish(tail, b"x")
    state = await user.state(subjects_filter=">")
    subjects = {one.rpartition(".")[2]: count for one, count in state["subjects"].items()}
    config = state_config(user, max_msgs_per_subject=2, discard="new", max_msgs=100)
    await user.api("STREAM.UPDATE.$", config | {"discard_new_per_subject": True})
    refused = await user.publish("a", b"x")
    await user.publish("b", b"x")
    return [state["messages"], subjects, refused, await user.publish("c", b"x")]


@shows([0, 2, 2, 1, 1])
async def interest(user: User) -> Any:
    await user.stream(retention="interest")
    await user.fill(2)
    found = [(await user.state())["messages"]]
    await user.consumer("one")
    await user.consumer("two")
    await user.fill(2)
    found.append((await user.state())["messages"])
    for message in await user.next("one", batch=2):
        await message.ack_sync(CALL_SECONDS)
    found.append((await user.state())["messages"])
    (message,) = await user.next("two")
    await message.ack_sync(CALL_SECONDS)

    async def one_left() -> bool:
        return bool((await user.state())["messages"] == 1)

    await until(one_left)
    found.append((await user.state())["messages"])
    await user.api("CONSUMER.DELETE.$.one")
    return [*found, (await user.state())["messages"]]


@shows([3, 2, ["m2", "m3"], 0])
async def work_queue(user: User) -> Any:
    await user.stream(retention="workqueue")
    await user.fill(3)
    await user.consumer("c")
    found: list[Any] = [(await user.state())["messages"]]
    (message,) = await user.next("c")
    await message.ack_sync(CALL_SECONDS)

    async def left(count: int) -> bool:
        return bool((await user.state())["messages"] == count)

    await until(lambda: left(2))
    found.append((await user.state())["messages"])
    rest = await user.next("c", batch=2)
    found.append([one.data.decode() for one in rest])
    for one in rest:
        await one.ack_sync(CALL_SECONDS)
    await until(lambda: left(0))
    return [*found, (await user.state())["messages"]]


@shows(
    [
        "ok",
        ["m1", "a"],
        ["m3", "b"],
        "NotFoundError",
        "NotFoundError",
        {"Nats-Sequence": "1", "Nats-Stream": True},
    ]
)
async def direct_get(user: User) -> Any:
    made = failure(await user.stream(allow_direct=True))
    for number, tail in enumerate("aab", 1):
        await user.publish(tail, b"m%d" % number)
    by_seq = await user.js.get_msg(user.name, seq=1, direct=True)
    last = await user.js.get_msg(user.name, subject=f"{user.subject}.b", direct=True)
    lost = [
        await raised(user.js.get_msg(user.name, seq=9, direct=True)),
        await raised(user.js.get_msg(user.name, subject=f"{user.subject}.x", direct=True)),
    ]
    plain = await user.nc.request(f"$JS.API.DIRECT.GET.{user.name}", b'{"seq":1}', CALL_SECONDS)
    headers = plain.headers or {}
    return [
        made,
        [(by_seq.data or b"").decode(), (by_seq.subject or "").rpartition(".")[2]],
        [(last.data or b"").decode(), (last.subject or "").rpartition(".")[2]],
        *lost,
        {
            "Nats-Sequence": headers["Nats-Sequence"],
            "Nats-Stream": headers["Nats-Stream"] == user.name,
        },
    ]


_MARKER = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "10s", "Nats-Rollup": "sub"}


@shows(
    [
        [["a", {"Nats-TTL": "never"}], ["c", _MARKER], ["b", _MARKER]],
        ["1", "1", "1", "2", "", ""],
        [1, 6, 3],
    ]
)
async def markers_of_what_age_ends(user: User) -> Any:
    """Age ends what says that it lives longer, and nothing that says never; a reader sees all."""
    second = 1_000_000_000
    config = {"max_age": 2 * second, "subject_delete_marker_ttl": 10 * second}
    await user.stream(**config, max_msgs_per_subject=5)
    reader = await user.js.subscribe(f"{user.subject}.>", ordered_consumer=True)
    await user.publish("a", b"1", {"Nats-TTL": "never"})
    await user.publish("b", b"1", {"Nats-TTL": "1h"})
    await user.publish("c", b"1")
    await user.publish("b", b"2")
    seen = [(await reader.next_msg(CALL_SECONDS)).data.decode() for _ in range(6)]

    async def replaced() -> bool:
        return bool((await user.state())["messages"] == 3)

    await until(replaced)
    found = [await user.js.get_msg(user.name, sequence) for sequence in (1, 5, 6)]
    state = await user.state()
    return [
        [[(one.subject or "").rpartition(".")[2], one.headers] for one in found],
        seen,
        [state["first_seq"], state["last_seq"], state["messages"]],
    ]


@shows(
    [
        ["Nats-TTL 5", "Nats-TTL 7s", "Nats-TTL never"],
        [500, 10052, "subject delete marker TTL must be at least 1 second"],
        [500, 10052, "subject delete marker TTL must not be negative"],
        [500, 10052, "subject delete marker cannot be set if message TTLs are disabled"],
        [500, 10052, "subject delete marker cannot be set if roll-ups are disabled"],
        [500, 10052, "subject delete markers forbidden on mirrors"],
        [500, 10052, "roll-ups require the purge permission"],
        [True, True, False],
    ]
)
async def streams_with_markers(user: User) -> Any:
    second = 1_000_000_000
    made = await user.stream(subject_delete_marker_ttl=5 * second)
    lives = []
    for sequence, ttl in enumerate(("1s", "7s", "never"), 1):
        await user.publish("a", b"", {"Nats-TTL": ttl})
        message = await user.js.get_msg(user.name, sequence)
        lives += [f"{name} {value}" for name, value in (message.headers or {}).items()]
    wrong: list[dict[str, Any]] = [
        {"subject_delete_marker_ttl": second - 1},
        {"subject_delete_marker_ttl": -1},
        {"subject_delete_marker_ttl": second, "pedantic": True},
        {"subject_delete_marker_ttl": second, "allow_msg_ttl": True, "pedantic": True},
        {"subject_delete_marker_ttl": second, "mirror": {"name": "m"}, "subjects": None},
        {"subject_delete_marker_ttl": second, "deny_purge": True, "allow_rollup_hdrs": True},
    ]
    refused = []
    for config in wrong:
        error = (await user.api("STREAM.CREATE.w", {"name": "w", "subjects": ["w"]} | config))[
            "error"
        ]
        refused.append([error["code"], error["err_code"], error["description"]])
    names = ("allow_msg_ttl", "allow_rollup_hdrs", "deny_purge")
    return [lives, *refused, [made["config"][name] for name in names]]


@shows([[1, 2, 3, 4, 5], True])
async def publishing_without_waiting(user: User) -> Any:
    await user.stream()
    futures = [await user.js.publish_async(f"{user.subject}.a", b"%d" % n) for n in range(5)]
    await user.js.publish_async_completed()
    acks = [future.result() for future in futures]
    many = [user.nc.publish(f"{user.subject}.a", b"x") for _ in range(500)]
    await asyncio.gather(*many)

    async def all_there() -> bool:
        return bool((await user.state())["messages"] == 505)

    await until(all_there)
    return [[ack.seq for ack in acks], True]


@shows([["SUBSCRIBER", "x"], 1])
async def subscribers_of_a_stream_subject(user: User) -> Any:
    await user.stream()
    subscription = await user.nc.subscribe(f"{user.subject}.a")
    await user.js.publish(f"{user.subject}.a", b"x")
    message = await subscription.next_msg(CALL_SECONDS)
    return [["SUBSCRIBER", message.data.decode()], (await user.state())["messages"]]


@shows([{"A": "b", "Nats-Msg-Id": "i"}, b"\x00\xff binary".hex()])
async def everything_of_a_message(user: User) -> Any:
    await user.stream()
    body = b"\x00\xff binary"
    await user.js.publish(f"{user.subject}.a", body, headers={"A": "b", "Nats-Msg-Id": "i"})
    found = await user.js.get_msg(user.name, seq=1)
    return [found.headers, (found.data or b"").hex()]
