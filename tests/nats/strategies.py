"""Strategies of what the JetStream API takes and returns, requests that are wrong included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from router.wire.nats.jetstream import replies
from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.consumer_rules import checked_consumer
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.requests import StreamConfigRequest
from router.wire.nats.jetstream.stream_rules import check_stream_create, checked_stream

_Config = TypeVar("_Config", StreamConfig, ConsumerConfig)

STREAM: Final = "S"
SECOND_NS: Final = 1_000_000_000
_MAX_INT64: Final = (1 << 63) - 1
_YEAR_2200_NS: Final = 7_258_118_400 * SECOND_NS

tokens = st.sampled_from(["a", "b", "c1", "*", "é", "$KV"])
subjects = st.lists(tokens, min_size=1, max_size=3).map(lambda parts: "s." + ".".join(parts)) | (
    st.lists(tokens, max_size=2).map(lambda parts: ".".join(["s", *parts, ">"]))
)
"""Subjects of the stream `S`; some overlap others."""

wrong_subjects = st.sampled_from(
    ["", ".", "a..b", "a b", ">.a", "$JS.API.>", "$JS.EVENT.x", "$SYS.>", ">", "a.>.b", "*", "x.>"]
)

_limits = st.sampled_from([-5, -1, 0, 1, 7, 1 << 31, _MAX_INT64])
_small_limits = st.sampled_from([-5, -1, 0, 1, 7, 1 << 20])
_durations = st.sampled_from(
    [
        -1,
        0,
        1,
        99_999_999,
        100_000_000,
        SECOND_NS,
        60 * SECOND_NS,
        120 * SECOND_NS,
        3600 * SECOND_NS,
    ]
)
# A consumer that is gone within the test would be no difference.
_thresholds = st.sampled_from([-1, 0, 60 * SECOND_NS, 3600 * SECOND_NS])
_words = st.text(st.characters(codec="utf-8"), max_size=8)
_ephemeral_names = st.sampled_from(["C", "C", "c.d", "a b", "x/y", "C>", "é"])
# A name of 256 letters is too long; nats-server says so of durable ones, and of others what its
# file system says.
_names = _ephemeral_names | st.just("n" * 256)
_times = st.sampled_from(["2024-02-29T01:02:03Z", "2035-01-01T00:00:00.000000001Z"])
_flags = st.booleans()
_metadata = st.dictionaries(
    _words.filter(lambda key: not key.startswith("_nats.")), _words, max_size=2
)

STREAM_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "description": _words | st.just("d" * 4097),
    "subjects": st.lists(subjects, max_size=3) | st.lists(subjects | wrong_subjects, max_size=3),
    "retention": st.sampled_from(["limits", "interest", "workqueue"]),
    "max_consumers": _small_limits,
    "max_msgs": _limits,
    "max_bytes": _small_limits,
    "max_age": _durations,
    "max_msgs_per_subject": _limits,
    "max_msg_size": _small_limits,
    "discard": st.sampled_from(["old", "new"]),
    "storage": st.sampled_from(["file", "memory"]),
    "num_replicas": st.sampled_from([-1, 0, 1, 1, 1, 3, 6]),
    "no_ack": _flags,
    "duplicate_window": _durations,
    "compression": st.sampled_from(["none", "s2"]),
    "first_seq": st.sampled_from([0, 1, 2, 1000]),
    "placement": st.sampled_from([{}, {"cluster": "c"}, {"tags": ["t"]}, {"preferred": "p"}]),
    "allow_direct": _flags,
    "mirror_direct": _flags,
    "discard_new_per_subject": _flags,
    "sealed": _flags,
    "deny_delete": _flags,
    "deny_purge": _flags,
    "allow_rollup_hdrs": _flags,
    "consumer_limits": st.fixed_dictionaries(
        {}, optional={"inactive_threshold": _thresholds, "max_ack_pending": _small_limits}
    ),
    "allow_msg_ttl": _flags,
    "subject_delete_marker_ttl": st.sampled_from([-1, 0, 0, 10**9 - 1, 10**9, 1_700_000_000]),
    "allow_atomic": _flags,
    "allow_batched": _flags,
    "persist_mode": st.sampled_from(["", "default", "async"]),
    "metadata": _metadata,
    "pedantic": _flags,
}
"""Values of the members of a stream's configuration that nats-server and the router share."""

CONSUMER_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "durable_name": _names,
    "name": _ephemeral_names,
    "description": _words | st.just("d" * 4097),
    "deliver_policy": st.sampled_from(
        [
            "all",
            "last",
            "new",
            "by_start_sequence",
            "by_start_time",
            "last_per_subject",
            "undefined",
        ]
    ),
    "opt_start_seq": st.sampled_from([0, 1, 9]),
    "opt_start_time": _times,
    "ack_policy": st.sampled_from(["none", "all", "explicit"]),
    "ack_wait": _durations,
    "max_deliver": _small_limits,
    "backoff": st.lists(_durations, max_size=3),
    "filter_subject": subjects | wrong_subjects,
    "filter_subjects": st.lists(subjects, max_size=3) | st.lists(wrong_subjects, max_size=2),
    "replay_policy": st.sampled_from(["instant", "original"]),
    "rate_limit_bps": st.sampled_from([0, 1 << 20]),
    "sample_freq": st.sampled_from(["", "5", "100%", "-1", "x", "%", "+7", "99999999999999999999"]),
    "max_waiting": _small_limits,
    "max_ack_pending": _small_limits,
    "flow_control": _flags,
    "headers_only": _flags,
    "max_batch": _small_limits,
    "max_expires": _durations,
    "max_bytes": _small_limits,
    "deliver_subject": st.sampled_from(["d", "d.e", "s.a", "d.*", "d e", "d..e", "*"]),
    "deliver_group": st.sampled_from(["", "g"]),
    "idle_heartbeat": _durations,
    "inactive_threshold": _thresholds,
    "num_replicas": st.sampled_from([-1, 0, 1, 1, 3]),
    "mem_storage": _flags,
    "metadata": _metadata,
    "pause_until": _times,
    "priority_timeout": st.sampled_from([-1, 0, SECOND_NS]),
    "priority_groups": st.sampled_from([[], ["g"], ["g", "h/_=-9"], ["g", ""], ["g.h"]]),
    "priority_policy": st.sampled_from(
        ["none", "none", "overflow", "pinned_client", "prioritized"]
    ),
}
"""Values of the members of a consumer's configuration that nats-server and the router share."""

not_of_the_type = st.sampled_from(
    [None, True, "x", 1.5, 1e30, -(1 << 70), [], [1], {}, {"x": 1}, ["a", None]]
)


def _members(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with a few of the members, now and then one of a wrong type or name."""
    names = sorted(values)
    some = st.lists(st.sampled_from(names), max_size=6, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: values[name] for name in chosen})
    )
    wrong = st.dictionaries(
        st.sampled_from([*names, "unknown", "NAME", "Description"]),
        not_of_the_type,
        min_size=1,
        max_size=1,
    )
    return some | some | some | st.builds(lambda a, b: a | b, some, wrong)


stream_bodies = _members(STREAM_VALUES).map(lambda body: {"name": STREAM, **body})
"""Bodies of STREAM.CREATE, right ones and wrong ones."""

consumer_bodies = _members(CONSUMER_VALUES)
"""Configurations of CONSUMER.CREATE, right ones and wrong ones."""


def _accepted(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except JetStreamError:
        return None


def _stream(body: dict[str, Any]) -> StreamConfig | None:
    body = {name: value for name, value in body.items() if name != "pedantic"}
    found: StreamConfig | None = _accepted(
        lambda: check_stream_create(STREAM, StreamConfigRequest(StreamConfig.from_json(body)))
    )
    return found


def _consumer(body: dict[str, Any]) -> ConsumerConfig | None:
    stream = checked_stream(StreamConfig(name=STREAM, subjects=("s.>",)))
    found: ConsumerConfig | None = _accepted(
        lambda: checked_consumer(ConsumerConfig.from_json(body), stream)
    )
    return found


def _taken(config: _Config | None) -> _Config:
    assert config is not None
    return config


def _is_for_tools(config: StreamConfig) -> bool:
    limits = config.consumer_limits
    return min(limits.inactive_threshold, limits.max_ack_pending) >= 0


stream_configs = stream_bodies.map(_stream).filter(bool).map(_taken)
"""Configurations of streams as they are stored: allowed, defaults filled in."""

tools_stream_configs = stream_configs.filter(_is_for_tools)
"""Those that jsm.go's schemas take: a stream's limit for its consumers may be below 0 elsewhere."""

consumer_configs = consumer_bodies.map(_consumer).filter(bool).map(_taken)
"""Configurations of consumers as they are stored: allowed, defaults filled in."""

_counts = st.integers(0, 1 << 62)
_moments = st.integers(0, _YEAR_2200_NS)
_pages = st.builds(replies.PagedReply, total=_counts, offset=_counts, limit=_counts)

stream_states = st.builds(
    replies.StreamState,
    **dict.fromkeys(
        ("messages", "bytes", "first_seq", "last_seq", "num_subjects", "num_deleted"), _counts
    ),
    first_ts=st.none() | _moments,
    last_ts=st.none() | _moments,
    consumer_count=_counts,
    subjects=st.dictionaries(subjects, st.integers(1, 9), max_size=2),
    deleted=st.lists(st.integers(1, 9), max_size=3, unique=True),
)
stream_infos = st.builds(
    replies.StreamInfo,
    config=tools_stream_configs,
    created=_moments,
    state=stream_states,
    ts=_moments,
)
_pairs = st.builds(replies.SequencePair, _counts, _counts, st.none() | _moments)
consumer_infos = st.builds(
    replies.ConsumerInfo,
    stream_name=st.just(STREAM),
    name=st.just("C"),
    created=_moments,
    config=consumer_configs,
    delivered=_pairs,
    ack_floor=_pairs,
    ts=_moments,
    **dict.fromkeys(("num_ack_pending", "num_redelivered", "num_waiting", "num_pending"), _counts),
    push_bound=_flags,
    paused=_flags,
    pause_remaining=_counts,
)

_names_page = st.lists(st.text("abC", min_size=1, max_size=3), max_size=3)
RESULTS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "account_info": st.builds(replies.AccountInfo, storage=_counts, streams=_counts),
    "stream_create": stream_infos,
    "stream_update": stream_infos,
    "stream_info": st.builds(replies.StreamInfoPage, info=stream_infos, page=_pages),
    "stream_names": st.builds(replies.ListPage, st.just("streams"), _names_page, _pages),
    "stream_list": st.builds(
        replies.ListPage, st.just("streams"), st.lists(stream_infos, max_size=2), _pages
    ),
    "stream_delete": st.just(replies.Success()),
    "stream_purge": st.builds(replies.Purged, _counts),
    "stream_msg_delete": st.just(replies.Success()),
    "stream_msg_get": st.builds(
        replies.MessageReply,
        subject=subjects,
        sequence=st.integers(1, 1 << 62),
        headers=st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
        payload=st.binary(max_size=8),
        time_ns=_moments,
    ),
    "consumer_create": consumer_infos,
    "consumer_info": consumer_infos,
    "consumer_names": st.builds(replies.ListPage, st.just("consumers"), _names_page, _pages),
    "consumer_list": st.builds(
        replies.ListPage, st.just("consumers"), st.lists(consumer_infos, max_size=2), _pages
    ),
    "consumer_delete": st.just(replies.Success()),
    "consumer_pause": st.builds(replies.Paused, st.none() | _moments, st.integers(0, 1 << 60)),
}
"""The results of each type of reply that the router sends."""

errors = st.sampled_from(list(ErrorCode)).map(
    lambda code: error(
        code, **dict.fromkeys(("err", "seq", "id", "max", "limit", "header", "size"), "7")
    )
)
"""Every error of the table."""
