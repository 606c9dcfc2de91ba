"""The two forms of answers: the seed's, which is the default, and `v1`, which NATS clients read.

They never mix: nats-py fails for a field of an error that it does not know. The seed's form has
types without `_response`, `time`, and errors of `message`, `code` and `kind` inside a body that is
minimally valid; a list has names. `v1` is what the same call answers over NATS, byte for byte where
that answers at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple
from wsgiref.types import WSGIEnvironment

from router.errors import BadReadOptionError
from router.errors.quoting import quoted
from router.services.jetstream.calls import UNKNOWN, ZERO_BODIES, JetStreamCall
from router.web.requests import Query
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError
from router.wire.nats.jetstream.replies import ERROR_MEMBERS
from router.wire.nats.jetstream.times import format_second

TYPE_PREFIX: Final = "io.nats.jetstream.api.v1."
FORM_HEADER: Final = "HTTP_NATS_API_FORM"


class Form(Enum):
    """How answers are written."""

    SEED = "seed"
    V1 = "v1"


def form_of(environ: WSGIEnvironment, query: Query | None = None) -> Form:
    """Return the form that a request chooses by `?form=` or the header `Nats-Api-Form`.

    `query`: its query, if that was read. Raises BadReadOptionError for one that there is not.
    """
    text = (query or Query(environ)).text("form") or environ.get(FORM_HEADER) or Form.SEED.value
    try:
        return Form(text)
    except ValueError as error:
        sentence = f"form: expected seed or v1, not {quoted(text, 40)}."
        raise BadReadOptionError(sentence) from error


KINDS: Final[Mapping[int, str]] = {
    400: "JetStreamBadRequest",
    401: "JetStreamUnauthorized",
    403: "JetStreamForbidden",
    408: "JetStreamTimeout",
    429: "JetStreamTooManyRequests",
    500: "JetStreamServerError",
    503: "JetStreamUnavailable",
    504: "JetStreamTimeout",
    ErrorCode.NOT_ENABLED_FOR_ACCOUNT: "JetStreamNotEnabled",
    ErrorCode.NOT_ENABLED: "JetStreamNotEnabled",
}
"""Kinds of errors in the seed's form, by the status or the number of the error.

Other statuses from 400 to 499 are bad requests, as the seed's own example, an unknown stream, is.
"""

# JetStream gives these 500 though the request is at fault: a retry does not help.
_BAD_REQUESTS: Final = frozenset(
    {
        ErrorCode.CONSUMER_CREATE,
        ErrorCode.MIRROR_CONSUMER_SETUP_FAILED,
        ErrorCode.SOURCE_CONSUMER_SETUP_FAILED,
        ErrorCode.STREAM_CREATE,
        ErrorCode.STREAM_INVALID_CONFIG,
        ErrorCode.STREAM_UPDATE,
        ErrorCode.STREAM_MSG_DELETE_FAILED,
        ErrorCode.STREAM_REPLICAS_NOT_SUPPORTED,
        ErrorCode.STREAM_PURGE_FAILED,
        ErrorCode.STREAM_ROLLUP_FAILED,
        ErrorCode.STREAM_INFO_MAX_SUBJECTS,
    }
)


class Fault(NamedTuple):
    """An error: JetStream's `code` and `err_code` (0: it has no number), and a sentence."""

    code: int
    err_code: int
    sentence: str

    @classmethod
    def of_error(cls, error: JetStreamError) -> Fault:
        """Return the fault of an error of the API."""
        return cls(error.code, int(error.err_code), error.description)

    @classmethod
    def of_json(cls, members: Mapping[str, Any]) -> Fault:
        """Return the fault of the member `error` of an answer in the form `v1`."""
        code, number = members.get("code"), members.get("err_code")
        sentence = members.get("description")
        return cls(
            code if isinstance(code, int) and 400 <= code <= 599 else 500,
            number if isinstance(number, int) else 0,
            sentence if isinstance(sentence, str) else "",
        )

    @property
    def status(self) -> int:
        """Return the status of the HTTP answer."""
        return 400 if self.err_code in _BAD_REQUESTS else self.code

    @property
    def number(self) -> int:
        """Return the number of the error: JetStream's, or the status where it has none."""
        return self.err_code or self.status

    @property
    def kind(self) -> str:
        """Return the kind of the error in the seed's form."""
        status = self.status
        known = KINDS.get(self.err_code) or KINDS.get(status)
        return known or KINDS[400 if status < 500 else 500]


def type_of(call_type: str, form: Form) -> str:
    """Return the `type` of an answer."""
    return TYPE_PREFIX + call_type + ("_response" if form is Form.V1 else "")


class Writer:
    """Writes answers as JSON objects; `wall_ns` is the time of day in ns since 1970."""

    def __init__(self, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns

    def fault(self, call: JetStreamCall, fault: Fault, form: Form) -> dict[str, Any]:
        """Return an error inside the type that the call would have returned."""
        if form is Form.V1:
            members: dict[str, Any] = {"code": fault.code}
            if fault.err_code:
                members["err_code"] = fault.err_code
            members["description"] = fault.sentence
            more = {} if call.type == UNKNOWN else ERROR_MEMBERS.get(call.type, {})
            return {"type": type_of(call.type, form), "error": members, **more}
        members = {"message": _sentence(call, fault), "code": fault.number, "kind": fault.kind}
        return {**self._head(call), "error": members, **ZERO_BODIES[call.type]}

    def seed(self, call: JetStreamCall, reply: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of a call in the seed's form, from that of the form `v1`."""
        body = {name: value for name, value in reply.items() if name not in _V1_MEMBERS}
        if call.type in {"stream_info", "stream_create", "stream_update"}:
            body = {"config": _config(reply["config"]), "state": _state(reply["state"])}
            if "subjects" in body["state"]:
                body |= {name: reply[name] for name in _PAGE if name in reply}
        elif (listed := _LISTED.get(call.type)) is not None:
            body = {listed: reply.get(listed) or []}
            if reply.get("total", 0) > len(body[listed]):
                body |= {name: reply[name] for name in _PAGE if name in reply}
        return {**self._head(call), **body}

    def written(self, call_type: str, form: Form, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer that JetStream's API does not have, in either form."""
        if form is Form.V1:
            return {"type": type_of(call_type, form), **members}
        return {**self._head(JetStreamCall(call_type, "")), **members}

    def _head(self, call: JetStreamCall) -> dict[str, Any]:
        seconds, fraction = divmod(self._wall_ns(), 1_000_000_000)
        time = f"{format_second(seconds)}.{fraction // 1000:06d}Z"
        return {"type": type_of(call.type, Form.SEED), "time": time}


_V1_MEMBERS: Final = frozenset({"type", "ts", "did_create", "cluster"})
_LISTED: Final = {
    "stream_list": "streams",
    "stream_names": "streams",
    "consumer_list": "consumers",
    "consumer_names": "consumers",
}
_PAGE: Final = ("total", "offset", "limit")
_STATE: Final = ("messages", "bytes", "first_seq", "last_seq", "consumer_count")
_MORE_STATE: Final = ("num_deleted", "deleted", "subjects")
_CONFIG: Final = (
    *("name", "subjects", "retention", "max_consumers", "max_msgs", "max_bytes", "max_age"),
    *("max_msg_size", "storage", "num_replicas"),
)
# What a stream has that says nothing else, beside the seed's members.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "discard": "old",
    "compression": "none",
    "max_msgs_per_subject": -1,
    "duplicate_window": 120_000_000_000,
    "consumer_limits": {},
}
_SERVER_METADATA: Final = "_nats."


def _config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seed's members of a configuration, and others that are not the default."""
    made = {name: config[name] for name in _CONFIG if config.get(name) not in (None, [])}
    for name, value in config.items():
        shown = value
        if name == "metadata":
            shown = {k: v for k, v in value.items() if not k.startswith(_SERVER_METADATA)}
        if name not in made and shown and shown != _DEFAULTS.get(name):
            made[name] = shown
    return made


def _state(state: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: state.get(name, 0) for name in _STATE}
    return made | {name: state[name] for name in _MORE_STATE if state.get(name)}


def _sentence(call: JetStreamCall, fault: Fault) -> str:
    """Return an error's sentence, with the name that it is about where JetStream leaves it out."""
    if fault.err_code == ErrorCode.STREAM_NOT_FOUND and call.stream:
        return f"unknown stream {call.stream}"
    if fault.err_code == ErrorCode.CONSUMER_NOT_FOUND and call.consumer:
        return f"unknown consumer {call.consumer} of stream {call.stream}"
    return fault.sentence
