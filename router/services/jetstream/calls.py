"""The calls of the JetStream API: by which subject, and of which type their answers are.

The type of an answer is known from the subject alone, whatever happens: an error is written inside
the type that the call would have returned (seed 003). A subject that is close to a call has its
type: `STREAM.INFO` without a name is answered as `stream_info`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from router.errors.quoting import quoted
from router.wire.nats.jetstream.cluster_calls import CLUSTER_CALLS
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error

UNKNOWN: Final = "error"
"""The type of answers to subjects of which no call is known."""
PREFIX: Final = "$JS.API."
MAX_SUBJECT_CHARACTERS: Final = 1_024
_DOT: Final = "%2E"
"""How the name of a stream writes a dot."""
_SPACES: Final = frozenset(" \t\r\n\f")


class JetStreamCall(NamedTuple):
    """A call by its subject; `subject` is what follows `$JS.API.`.

    `stream` and `consumer` are empty where the call names none. `seed_subject`: what the seed's
    form is made from, if that is the answer to another subject.
    """

    type: str
    subject: str
    stream: str = ""
    consumer: str = ""
    seed_subject: str = ""
    fault: JetStreamError | None = None


class _Rule(NamedTuple):
    """A call: the words that its subject begins with, and the names behind them."""

    words: tuple[str, ...]
    type: str
    names: tuple[str, ...] = ()
    seed_words: tuple[str, ...] = ()
    more: bool = False
    instead: str = ""
    refusal: ErrorCode | None = None


def _rule(
    words: str, type_: str, *names: str, seed: str = "", more: bool = False, instead: str = ""
) -> _Rule:
    return _Rule(
        tuple(words.split(".")), type_, names, tuple(filter(None, seed.split("."))), more, instead
    )


_FETCH: Final = "is served as POST /jetstream/fetch/<stream>/<consumer>"
_ARCHIVE: Final = "is served to clients of NATS: archives are messages"
_GET: Final = "is not served over HTTP; STREAM.MSG.GET is"
# Of two rules that a subject begins with, the longer one counts.
_RULES: Final = tuple(
    sorted(
        (
            _rule("INFO", "account_info"),
            _rule("STREAM.CREATE", "stream_create", "stream"),
            _rule("STREAM.UPDATE", "stream_update", "stream"),
            _rule("STREAM.INFO", "stream_info", "stream"),
            _rule("STREAM.NAMES", "stream_names"),
            # In the seed's form a list has names.
            _rule("STREAM.LIST", "stream_list", seed="STREAM.NAMES"),
            _rule("STREAM.PURGE", "stream_purge", "stream"),
            _rule("STREAM.DELETE", "stream_delete", "stream"),
            _rule("STREAM.SNAPSHOT", "stream_snapshot", "stream", instead=_ARCHIVE),
            _rule("STREAM.RESTORE", "stream_restore", "stream", instead=_ARCHIVE),
            _rule("STREAM.MSG.GET", "stream_msg_get", "stream"),
            _rule("STREAM.MSG.DELETE", "stream_msg_delete", "stream"),
            _rule("DIRECT.GET", "stream_msg_get", "stream", more=True, instead=_GET),
            _rule("CONSUMER.CREATE", "consumer_create", "stream", more=True),
            _rule("CONSUMER.DURABLE.CREATE", "consumer_create", "stream", "consumer"),
            _rule("CONSUMER.INFO", "consumer_info", "stream", "consumer"),
            _rule("CONSUMER.NAMES", "consumer_names", "stream"),
            _rule("CONSUMER.LIST", "consumer_list", "stream", seed="CONSUMER.NAMES"),
            _rule("CONSUMER.DELETE", "consumer_delete", "stream", "consumer"),
            _rule("CONSUMER.PAUSE", "consumer_pause", "stream", "consumer"),
            _rule("CONSUMER.RESET", "consumer_reset", "stream", "consumer"),
            _rule("CONSUMER.UNPIN", "consumer_unpin", "stream", "consumer"),
            *(
                _rule(one.words, one.type, *one.names)._replace(refusal=ErrorCode.CLUSTER_REQUIRED)
                for one in CLUSTER_CALLS
            ),
            _rule("CONSUMER.MSG.NEXT", "consumer_fetch", "stream", "consumer", instead=_FETCH),
        ),
        key=lambda rule: -len(rule.words),
    )
)

READS: Final = r"(?:\$JS\.API\.)?(?:INFO|(?:STREAM|CONSUMER)\.(?:INFO|LIST|NAMES)(?:\.[^/]*)?)"
"""A pattern of the subjects that GET serves: a link must not change anything."""

# Values of the seed's error bodies: what its types need at least, all of them zero.
_ZERO_STREAM: Final[Mapping[str, Any]] = {
    "config": {
        "name": "",
        "retention": "",
        "max_consumers": 0,
        "max_msgs": 0,
        "max_bytes": 0,
        "max_age": 0,
        "storage": "",
        "num_replicas": 0,
    },
    "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0},
}
_ZERO_PLACE: Final = {"consumer_seq": 0, "stream_seq": 0}
_ZERO_CONSUMER: Final[Mapping[str, Any]] = {
    "stream_name": "",
    "name": "",
    "config": {
        "ack_policy": "",
        "ack_wait": 0,
        "deliver_policy": "",
        "max_deliver": 0,
        "replay_policy": "",
    },
    "delivered": _ZERO_PLACE,
    "ack_floor": _ZERO_PLACE,
    "num_ack_pending": 0,
    "num_redelivered": 0,
    "num_waiting": 0,
    "num_pending": 0,
}
ZERO_BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "account_info": {
        "memory": 0,
        "storage": 0,
        "streams": 0,
        "consumers": 0,
        "limits": {"max_memory": 0, "max_storage": 0, "max_streams": 0, "max_consumers": 0},
    },
    "stream_create": _ZERO_STREAM,
    "stream_update": _ZERO_STREAM,
    "stream_info": _ZERO_STREAM,
    "stream_names": {"streams": []},
    "stream_list": {"streams": []},
    "stream_purge": {"success": False, "purged": 0},
    "stream_delete": {"success": False},
    "stream_snapshot": {},
    "stream_restore": {"deliver_subject": ""},
    "stream_msg_get": {
        "message": {"subject": "", "seq": 0, "data": "", "time": "0001-01-01T00:00:00Z"}
    },
    "stream_msg_delete": {"success": False},
    "consumer_create": _ZERO_CONSUMER,
    "consumer_info": _ZERO_CONSUMER,
    "consumer_names": {"consumers": []},
    "consumer_list": {"consumers": []},
    "consumer_delete": {"success": False},
    "consumer_pause": {"paused": False},
    "consumer_reset": _ZERO_CONSUMER,
    "consumer_unpin": {},
    **{one.type: {"success": False} for one in CLUSTER_CALLS if one.type != "stream_update"},
    "consumer_fetch": {"messages": []},
    UNKNOWN: {},
}


def call_of(subject: str) -> JetStreamCall:
    """Return the call of a subject, which has a fault if it cannot be made."""
    subject = subject.removeprefix(PREFIX)
    tokens = subject.split(".")
    for rule in _RULES:
        count = len(rule.words)
        if tuple(tokens[:count]) == rule.words:
            return _named(rule, subject, tokens[count:])
    words = set(tokens[:2])
    near = next((r.type for r in _RULES if len(words) == 2 and words <= {*r.words}), UNKNOWN)
    return JetStreamCall(
        near, subject, fault=bad_request(f"{quoted(subject, 80)} is no call of the API")
    )


def bad_request(sentence: str) -> JetStreamError:
    """Return the error `bad request` with a sentence that says what is wrong."""
    number = ErrorCode.BAD_REQUEST
    return JetStreamError(number, f"{number.description}: {sentence}")


def _named(rule: _Rule, subject: str, names: list[str]) -> JetStreamCall:
    if rule.names == ("stream",) and not rule.more and len(names) > 1:
        # `%2E` of a stream's name is a dot in the path of a URL.
        names = [_DOT.join(names)]
        subject = ".".join((*rule.words, *names))
    needed = len(rule.names)
    given = dict(zip(rule.names, names, strict=False))
    if rule.more and len(names) > 1 and rule.type == "consumer_create":
        given["consumer"] = names[1]
    seed = ".".join((*rule.seed_words, *names)) if rule.seed_words else subject
    call = JetStreamCall(
        rule.type, subject, given.get("stream", ""), given.get("consumer", ""), seed
    )
    name = ".".join(rule.words)
    if rule.refusal is not None:
        return call._replace(fault=error(rule.refusal))
    if rule.instead:
        return call._replace(fault=bad_request(f"{name} {rule.instead}"))
    if len(names) < needed or (len(names) > needed and not rule.more):
        expected = " and ".join(rule.names) or "nothing"
        return call._replace(fault=bad_request(f"{name} is followed by {expected}"))
    if len(subject) > MAX_SUBJECT_CHARACTERS or not all(names) or not _SPACES.isdisjoint(subject):
        return call._replace(fault=bad_request("the subject is not valid"))
    if not {"*", ">"}.isdisjoint("".join(names[:2])):
        return call._replace(fault=bad_request("a name has no wildcards"))
    return call
