"""Whole replies of the API, without what differs from run to run."""

from __future__ import annotations

from typing import Any

from tests.nats.scenarios import RECORDED, shows
from tests.nats.users import User

VARYING = {
    "created",
    "ts",
    "first_ts",
    "last_ts",
    "time",
    "cluster",
    "last_active",
    "pause_remaining",
}
Step = tuple[str, Any]


def _alike(user: User, value: Any) -> Any:
    """Return a reply with the user's names replaced, and without times and the words of errors."""
    if isinstance(value, dict):
        if "err_code" in value:
            return [value["code"], value["err_code"]]
        kept = {name: one for name, one in value.items() if name not in VARYING}
        if isinstance(kept.get("metadata"), dict):
            own = {n: v for n, v in kept["metadata"].items() if not n.startswith("_nats.")}
            kept = {n: v for n, v in kept.items() if n != "metadata"}
            kept |= {"metadata": own} if own else {}
        return {_alike(user, name): _alike(user, one) for name, one in kept.items()}
    if isinstance(value, list):
        return [_alike(user, one) for one in value]
    if isinstance(value, str):
        return value.replace(user.name, "$").replace(user.subject, "#")
    return value


async def _transcript(user: User, steps: list[Step]) -> list[Any]:
    """Send requests in turn; return the replies. `$` is the stream, `#` its subjects' first token.

    A step whose call starts with `>` publishes.
    """
    found: list[Any] = []
    for call, template in steps:
        body = _filled(user, template)
        if call.startswith(">"):
            found.append([call, await user.publish(call[1:], b"payload", body)])
        else:
            reply = await user.api(call, body)
            found.append([call, _alike(user, reply)])
    return found


def _filled(user: User, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _filled(user, one) for name, one in value.items()}
    if isinstance(value, list):
        return [_filled(user, one) for one in value]
    if isinstance(value, str):
        return value.replace("$", user.name).replace("#", user.subject)
    return value


BASE = {"name": "$", "subjects": ["#.>"], "retention": "limits", "storage": "file"}
OTHER = "$-other"


@shows(RECORDED)
async def life_of_a_stream(user: User) -> Any:
    return await _transcript(
        user,
        [
            ("STREAM.CREATE.$", BASE | {"description": "d", "metadata": {"a": "b"}}),
            ("STREAM.CREATE.$", BASE | {"description": "d", "metadata": {"a": "b"}}),
            (">a", None),
            (">a", None),
            (">b", None),
            ("STREAM.INFO.$", None),
            ("STREAM.INFO.$", {}),
            ("STREAM.INFO.$", {"subjects_filter": ">"}),
            ("STREAM.INFO.$", {"subjects_filter": "#.a"}),
            ("STREAM.MSG.DELETE.$", {"seq": 2}),
            ("STREAM.INFO.$", {"deleted_details": True}),
            ("STREAM.UPDATE.$", BASE | {"max_msgs": 10, "subjects": ["#.>", "#-more"]}),
            ("STREAM.NAMES", {"subject": "#.a"}),
            ("STREAM.NAMES", {"subject": "#.nothing.*"}),
            ("STREAM.NAMES", {"subject": "#-none"}),
            ("STREAM.LIST", {"subject": "#-more"}),
            ("STREAM.PURGE.$", None),
            ("STREAM.INFO.$", None),
            (">a", None),
            ("STREAM.DELETE.$", None),
            ("STREAM.DELETE.$", None),
            ("STREAM.INFO.$", None),
            ("STREAM.PURGE.$", None),
            ("STREAM.UPDATE.$", BASE),
            ("STREAM.MSG.GET.$", {"seq": 1}),
            ("STREAM.MSG.DELETE.$", {"seq": 1}),
        ],
    )


@shows(RECORDED)
async def streams_that_cannot_be(user: User) -> Any:
    wrong: list[dict[str, Any] | bytes] = [
        b"",
        b"not json",
        b"[]",
        b'{"name": 7}',
        {},
        {"name": "$-x"},
        BASE | {"surprise": 1},
        BASE | {"retention": "forever"},
        BASE | {"storage": "tape"},
        BASE | {"discard": "some"},
        BASE | {"compression": "zip"},
        BASE | {"max_age": "1h"},
        BASE | {"max_msgs": -2},
        BASE | {"max_age": -1},
        BASE | {"max_age": 1_000},
        BASE | {"num_replicas": 3},
        BASE | {"num_replicas": 6},
        BASE | {"num_replicas": -1},
        BASE | {"subjects": ["a..b"]},
        BASE | {"subjects": ["#.a b"]},
        BASE | {"subjects": ["#.a", "#.a"]},
        BASE | {"subjects": ["#.a", "#.*"]},
        BASE | {"subjects": [">"]},
        BASE | {"subjects": ["$JS.API.x"]},
        BASE | {"subjects": ["$SYS.x"]},
        BASE | {"subjects": [""]},
        BASE | {"duplicate_window": -1},
        BASE | {"max_age": 10**9, "duplicate_window": 2 * 10**9},
        BASE | {"duplicate_window": 1},
        BASE | {"discard_new_per_subject": True},
        BASE | {"discard_new_per_subject": True, "discard": "new"},
        BASE | {"deny_purge": True, "allow_rollup_hdrs": True},
        BASE | {"sealed": True},
        BASE | {"max_consumers": -5},
        BASE | {"max_msg_size": -5},
        BASE | {"max_bytes": -5},
        BASE | {"max_msgs_per_subject": -5},
        BASE | {"description": "x" * 5_000},
        BASE | {"metadata": {"k": "x" * 140_000}},
        BASE | {"mirror": {"name": "$-none"}},
        BASE | {"first_seq": 10, "template_owner": "x"},
    ]
    steps: list[Step] = []
    for one in wrong:
        steps += [("STREAM.CREATE.$", one), ("STREAM.DELETE.$", None)]
    steps += [("STREAM.CREATE." + "x" * 300, BASE | {"name": "x" * 300})]
    return await _transcript(user, steps)


@shows(RECORDED)
async def updates_of_a_stream(user: User) -> Any:
    changes: list[dict[str, Any]] = [
        {"retention": "interest"},
        {"retention": "workqueue"},
        {"storage": "memory"},
        {"max_consumers": 7},
        {"discard": "new"},
        {"max_msgs": 5},
        {"max_age": 3_600 * 10**9},
        {"deny_delete": True},
        {"deny_delete": False},
        {"deny_purge": True},
        {"deny_purge": False},
        {"allow_rollup_hdrs": True},
        {"subjects": ["#.other"]},
        {"subjects": []},
        {"num_replicas": 3},
        {"sealed": True},
        {"max_msgs_per_subject": 3},
        {"allow_direct": True},
        {"first_seq": 9},
        {"name": "$-y"},
    ]
    steps: list[Step] = [("STREAM.CREATE.$", BASE), (">other", None)]
    for change in changes:
        steps += [("STREAM.UPDATE.$", BASE | change)]
    return await _transcript(user, [*steps, ("STREAM.INFO.$", None)])


@shows(RECORDED)
async def streams_that_overlap(user: User) -> Any:
    steps: list[Step] = [("STREAM.CREATE.$", BASE)]
    for subjects in (["#.a"], ["#.>"], ["#.*.b"], ["*.a"], ["#"], ["#-x"]):
        steps += [("STREAM.CREATE.$-o", BASE | {"name": "$-o", "subjects": subjects})]
        steps += [("STREAM.DELETE.$-o", None)]
    return await _transcript(user, [*steps, ("STREAM.UPDATE.$", BASE | {"max_msgs": 3})])


@shows(RECORDED)
async def messages_by_sequence(user: User) -> Any:
    steps: list[Step] = [("STREAM.CREATE.$", BASE)]
    steps += [(f">{tail}", {"A": tail}) for tail in ("a", "b", "a", "c.d")]
    asked: list[dict[str, Any] | None] = [
        None,
        {},
        {"seq": 1},
        {"seq": 4},
        {"seq": 5},
        {"seq": 0},
        {"last_by_subj": "#.a"},
        {"last_by_subj": "#.none"},
        {"last_by_subj": "#.*"},
        {"seq": 2, "next_by_subj": "#.a"},
        {"next_by_subj": "#.b"},
        {"seq": 4, "next_by_subj": "#.a"},
        {"seq": 1, "last_by_subj": "#.a"},
        {"seq": 1, "surprise": True},
        {"start_time": "2020-01-01T00:00:00Z"},
        {"multi_last": ["#.a"]},
        {"batch": 2, "seq": 1},
    ]
    steps += [("STREAM.MSG.GET.$", one) for one in asked]
    deletes: list[dict[str, Any] | None] = [
        None,
        {},
        {"seq": 0},
        {"seq": 9},
        {"seq": 2},
        {"seq": 2},
        {"seq": 1, "no_erase": True},
    ]
    steps += [("STREAM.MSG.DELETE.$", one) for one in deletes]
    return await _transcript(user, [*steps, ("STREAM.INFO.$", {"deleted_details": True})])


@shows(RECORDED)
async def purges(user: User) -> Any:
    steps: list[Step] = [("STREAM.CREATE.$", BASE)]
    steps += [(f">{tail}", None) for tail in "abcabcabc"]
    for one in (
        {"filter": "#.a", "keep": 1},
        {"filter": "#.none"},
        {"seq": 4},
        {"seq": 6, "filter": "#.b"},
        {"seq": 4, "keep": 1},
        {"keep": 2},
        {"keep": 20},
        {"filter": "bad..filter"},
        {"surprise": 1},
        {"seq": 100},
        {},
        None,
    ):
        steps += [("STREAM.PURGE.$", one), ("STREAM.INFO.$", {"deleted_details": True})]
    steps += [(">a", None), ("STREAM.UPDATE.$", BASE | {"deny_purge": True, "deny_delete": True})]
    steps += [("STREAM.PURGE.$", None), ("STREAM.MSG.DELETE.$", {"seq": 10})]
    return await _transcript(user, steps)


def _made(config: dict[str, Any], name: str = "c", action: str | None = None) -> Step:
    body: dict[str, Any] = {"stream_name": "$", "config": config}
    return f"CONSUMER.CREATE.$.{name}", body | ({} if action is None else {"action": action})


@shows(RECORDED)
async def life_of_a_consumer(user: User) -> Any:
    durable = {"durable_name": "c", "ack_policy": "explicit"}
    return await _transcript(
        user,
        [
            ("STREAM.CREATE.$", BASE),
            (">a", None),
            (">b", None),
            _made(durable),
            _made(durable),
            _made(durable, action="create"),
            _made(durable | {"description": "new"}, action="create"),
            _made(durable | {"description": "new"}),
            _made(durable | {"description": "new", "max_ack_pending": 5}, action="update"),
            _made(durable | {"durable_name": "d"}, "d", action="update"),
            _made(durable | {"deliver_policy": "last"}),
            _made(durable | {"ack_policy": "none"}),
            _made(durable | {"filter_subject": "#.a"}),
            ("CONSUMER.INFO.$.c", None),
            ("CONSUMER.NAMES.$", None),
            ("CONSUMER.NAMES.$", {"offset": 5}),
            ("CONSUMER.LIST.$", None),
            ("CONSUMER.DELETE.$.c", None),
            ("CONSUMER.DELETE.$.c", None),
            ("CONSUMER.INFO.$.c", None),
            ("CONSUMER.NAMES.$", {}),
            ("CONSUMER.LIST.$", {}),
            ("CONSUMER.INFO.$-no.c", None),
            ("CONSUMER.NAMES.$-no", None),
            ("CONSUMER.LIST.$-no", None),
            ("CONSUMER.DELETE.$-no.c", None),
            ("CONSUMER.CREATE.$-no.c", {"stream_name": "$-no", "config": durable}),
            (
                "CONSUMER.DURABLE.CREATE.$.old",
                {"stream_name": "$", "config": {"durable_name": "old"}},
            ),
            (
                "CONSUMER.DURABLE.CREATE.$.old",
                {"stream_name": "$", "config": {"durable_name": "x"}},
            ),
            ("STREAM.INFO.$", None),
        ],
    )


@shows(RECORDED)
async def consumers_that_cannot_be(user: User) -> Any:
    durable = {"durable_name": "c", "ack_policy": "explicit"}
    push = durable | {"deliver_subject": "#-to"}
    wrong: list[dict[str, Any]] = [
        durable | {"surprise": 1},
        durable | {"ack_policy": "maybe"},
        durable | {"deliver_policy": "some"},
        durable | {"replay_policy": "fast"},
        durable | {"durable_name": "other"},
        durable | {"name": "other"},
        durable | {"durable_name": "a.b"},
        durable | {"deliver_policy": "by_start_sequence"},
        durable | {"deliver_policy": "by_start_time"},
        durable | {"opt_start_seq": 5},
        durable | {"opt_start_time": "2020-01-01T00:00:00Z"},
        durable | {"deliver_policy": "last", "opt_start_seq": 5},
        durable | {"deliver_policy": "last_per_subject"},
        durable | {"filter_subject": "elsewhere"},
        durable | {"filter_subject": "#.a b"},
        durable | {"filter_subject": "#.a", "filter_subjects": ["#.b"]},
        durable | {"filter_subjects": ["#.a", "#.>"]},
        durable | {"filter_subjects": ["#.a", ""]},
        durable | {"max_deliver": 2, "backoff": [10**9, 10**9, 10**9]},
        durable | {"backoff": [10**9, 2 * 10**9], "ack_wait": 5 * 10**9},
        durable | {"max_deliver": -5},
        durable | {"max_deliver": 0},
        durable | {"ack_wait": -1},
        durable | {"max_ack_pending": -5},
        durable | {"max_waiting": -5},
        durable | {"flow_control": True},
        durable | {"idle_heartbeat": 10**9},
        durable | {"rate_limit_bps": 100},
        durable | {"headers_only": True},
        durable | {"max_batch": -1},
        durable | {"max_expires": 1},
        durable | {"deliver_group": "g"},
        durable | {"num_replicas": 3},
        durable | {"inactive_threshold": -1},
        durable | {"sample_freq": "x"},
        durable | {"sample_freq": "30%"},
        durable | {"description": "x" * 5_000},
        push | {"max_waiting": 5},
        push | {"idle_heartbeat": 1_000},
        push | {"flow_control": True},
        push | {"flow_control": True, "idle_heartbeat": 10**9},
        push | {"deliver_subject": "#.cycle"},
        push | {"deliver_subject": "a.*"},
        push | {"deliver_subject": ""},
        push | {"max_batch": 4},
        push | {"ack_policy": "none", "max_ack_pending": 5},
    ]
    steps: list[Step] = [("STREAM.CREATE.$", BASE)]
    for one in wrong:
        steps += [_made(one), ("CONSUMER.DELETE.$.c", None)]
    steps += [
        ("CONSUMER.CREATE.$.c", body) for body in (b"", b"nonsense", {}, {"stream_name": "x"})
    ]
    steps += [("CONSUMER.CREATE.$", {"stream_name": "$", "config": {"durable_name": "c"}})]
    steps += [("CONSUMER.CREATE.$.c.#.a", {"stream_name": "$", "config": durable})]
    steps += [
        (
            "CONSUMER.CREATE.$.c.#.a",
            {"stream_name": "$", "config": durable | {"filter_subject": "#.a"}},
        )
    ]
    steps += [
        (
            "CONSUMER.CREATE.$.c.#.b",
            {"stream_name": "$", "config": durable | {"filter_subject": "#.a"}},
        )
    ]
    return await _transcript(user, steps)


@shows(RECORDED)
async def consumers_of_a_work_queue(user: User) -> Any:
    durable = {"durable_name": "c", "ack_policy": "explicit"}
    return await _transcript(
        user,
        [
            ("STREAM.CREATE.$", BASE | {"retention": "workqueue", "max_consumers": 3}),
            _made(durable | {"ack_policy": "none"}),
            _made(durable | {"deliver_policy": "new"}),
            _made(durable | {"filter_subject": "#.a"}),
            _made(durable | {"durable_name": "d"}, "d"),
            _made(durable | {"durable_name": "d", "filter_subject": "#.a"}, "d"),
            _made(durable | {"durable_name": "d", "filter_subject": "#.b"}, "d"),
            _made(durable | {"durable_name": "e", "filter_subjects": ["#.c", "#.b"]}, "e"),
            _made(durable | {"durable_name": "e", "filter_subject": "#.c"}, "e"),
            _made(durable | {"durable_name": "f", "filter_subject": "#.d"}, "f"),
        ],
    )


@shows(RECORDED)
async def account_information(user: User) -> Any:
    reply = await user.api("INFO")
    return [sorted(reply), sorted(reply["limits"]), sorted(reply["api"])]
