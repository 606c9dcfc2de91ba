"""What stands beside a view: its routes, and parameters, body, answers and failures of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
)

from flask import Blueprint
from werkzeug.routing import BaseConverter

Schema = Mapping[str, Any]
Form: TypeAlias = "Schema | type[Any] | UnionType | Sequence[Form]"
"""What stands for a schema: itself, types of FORMS, `dict[str, …]`, or a list of one form."""
View = TypeVar("View", bound=Callable[..., Any])

ATTRIBUTE: Final = "described"
"""The attribute of a view that has its Operation."""
JSON: Final = "application/json"
HTML: Final = "text/html"
FORMS: Final[Mapping[type[Any], Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer", "minimum": 0},
    bool: {"type": "boolean"},
    dict: {"type": "object"},
    list: {"type": "array"},
    object: {},
}
EVENTS: Final[Schema] = {}
"""Server-sent events, which OpenAPI 3.1 has no words for."""

TOPIC: Final = ("topic-not-found", "internal-topic")
"""What a route that needs its topic may fail with."""
STORE: Final = ("backend-unavailable", "backend-timeout", "coordination-unavailable")
"""What a route that asks the store or the node's broker may fail with."""
APPEND: Final = (
    *("message-too-large", "publish-refused", "disk-full", "topic-terminated", "topic-held"),
    *("quota-exceeded", "outcome-unknown"),
)
"""What a route that stores messages may fail with."""
BODY: Final = ("batch-too-large", "unsupported-encoding")
"""What a route that reads a body may fail with."""


_NONE: Final[Mapping[Any, Any]] = {}


class ParameterKind(Enum):
    """How a parameter is read (`router.web.requests`)."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    MOMENT = "moment"
    TARGET = "target"


class Parameter(NamedTuple):
    """A parameter of the query, a header, or a segment of the path.

    One whose place is the path says more of a segment than SEGMENTS does.
    """

    name: str
    meaning: str
    kind: ParameterKind = ParameterKind.TEXT
    choices: tuple[str, ...] = ()
    place: str = "query"
    pattern: str = ""
    required: bool = False
    limit: int | None = None


def text(name: str, meaning: str, pattern: str = "") -> Parameter:
    """Return a parameter that is any text, or one that fits a pattern."""
    return Parameter(name, meaning, pattern=pattern)


def number(name: str, meaning: str, limit: int | None = None) -> Parameter:
    """Return a parameter that is a whole number; more than `limit` is refused."""
    return Parameter(name, meaning, ParameterKind.NUMBER, limit=limit)


def required(parameter: Parameter) -> Parameter:
    """Return a parameter without which the route refuses a request."""
    return parameter._replace(required=True)


def flag(name: str, meaning: str) -> Parameter:
    """Return a parameter that is true or false."""
    return Parameter(name, meaning, ParameterKind.FLAG)


def choice(name: str, choices: Iterable[str], meaning: str) -> Parameter:
    """Return a parameter that is one of several words."""
    return Parameter(name, meaning, ParameterKind.CHOICE, tuple(choices))


def moment(name: str, meaning: str) -> Parameter:
    """Return a parameter that is the earliest, the latest, or a time."""
    return Parameter(name, meaning, ParameterKind.MOMENT)


def target(name: str, meaning: str) -> Parameter:
    """Return a parameter that is what `moment` is, or positions."""
    return Parameter(name, meaning, ParameterKind.TARGET)


def header(name: str, meaning: str) -> Parameter:
    """Return a header that the route reads."""
    return Parameter(name, meaning, place="header")


TRACED: Final = (
    header("traceparent", "The W3C trace context that the messages carry; ignored if invalid."),
    header("tracestate", "What else belongs to that context."),
)
"""Headers of a route that stores messages."""


class BodyDescription(NamedTuple):
    """A request's body, by its media types; `examples` by the same."""

    kinds: Mapping[str, Form]
    meaning: str = ""
    required: bool = True
    examples: Mapping[str, Any] = _NONE


class ReplyDescription(NamedTuple):
    """An answer: what it means, and its body by media types, none if it has no body."""

    meaning: str
    kinds: Mapping[str, Form] = _NONE


def answers_json(form: Form = dict, meaning: str = "Done.") -> Mapping[int, ReplyDescription]:
    """Return the answer 200 in JSON."""
    return {200: ReplyDescription(meaning, {JSON: form})}


_DONE: Final = answers_json()


def answers_nothing(meaning: str = "Done.") -> Mapping[int, ReplyDescription]:
    """Return the answer 204."""
    return {204: ReplyDescription(meaning)}


def schema(form: Form) -> Schema:
    """Return the schema that a form stands for."""
    if isinstance(form, UnionType):
        kinds = get_args(form)
        return {"type": ["null" if k is NoneType else FORMS[k]["type"] for k in kinds]}
    if get_origin(form) is dict:
        return {"type": "object", "additionalProperties": schema(get_args(form)[1])}
    if isinstance(form, type):
        return FORMS[form]
    if isinstance(form, Mapping):
        return form
    return {"type": "array", "items": schema(*form)}


def shape(required: Mapping[str, Form], optional: Mapping[str, Form] = _NONE) -> Schema:
    """Return the schema of an object with these fields."""
    fields = {name: schema(form) for name, form in {**required, **optional}.items()}
    return {"type": "object", "properties": fields} | (
        {"required": list(required)} if required else {}
    )


def one_of(words: Iterable[str]) -> Schema:
    """Return the schema of one of several words."""
    return {"type": "string", "enum": list(words)}


class Operation(NamedTuple):
    """What a route does, beside what its view's docstring says.

    `routes`: methods and paths, each as `GET /path`, with an endpoint behind it where that is not
    the name of the view. `fails`: stable codes of `router.errors`; its dialect says which statuses
    they are. What every route may fail with, what credentials, names and bodies may, need not be
    said. `refuses`: statuses that no code stands for. `public`: it needs no credentials. `hidden`:
    it serves nothing but refusals, and is no part of the document. `summary` stands for the
    docstring of a view that has none.
    """

    routes: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: BodyDescription | None = None
    answers: Mapping[int, ReplyDescription] = _DONE
    fails: tuple[str, ...] = STORE
    refuses: Mapping[int, str] = _NONE
    public: bool = False
    hidden: bool = False
    notes: str = ""
    summary: str = ""


class More(TypedDict, total=False):
    """The fields of Operation beside routes and parameters."""

    body: BodyDescription
    answers: Mapping[int, ReplyDescription]
    fails: tuple[str, ...]
    refuses: Mapping[int, str]
    public: bool
    hidden: bool
    notes: str
    summary: str


def operation(*about: str | Parameter, **more: Unpack[More]) -> Callable[[View], View]:
    """Return a decorator that describes a view: its routes, its parameters, and other fields."""
    routes = tuple(one for one in about if isinstance(one, str))
    made = Operation(routes, tuple(one for one in about if isinstance(one, Parameter)), **more)

    def mark(view: View) -> View:
        setattr(view, ATTRIBUTE, made)
        return view

    return mark


def reads(
    path: str, form: Form, meaning: str, *parameters: Parameter, **more: Unpack[More]
) -> Callable[[View], View]:
    """Return a decorator that describes a view of a path that answers in JSON."""
    more.setdefault("answers", answers_json(form, meaning))
    return operation(f"GET {path}", *parameters, **more)


def described(view: object) -> Operation | None:
    """Return what stands beside a view, None: nothing."""
    found: Operation | None = getattr(view, ATTRIBUTE, None)
    return found


def routes_of(views: object) -> Iterator[tuple[str, str, str, Callable[..., Any]]]:
    """Yield method, path, endpoint and view of each route of an object's methods."""
    classes = reversed(type(views).__mro__)
    for name in dict.fromkeys(name for kind in classes for name in vars(kind)):
        operation = described(getattr(type(views), name))
        for route in operation.routes if operation else ():
            verb, path, *endpoint = route.split(" ")
            yield verb, path, endpoint[0] if endpoint else name, getattr(views, name)


def add_converters(blueprint: Blueprint, kinds: Mapping[str, type[BaseConverter]]) -> None:
    """Have the application convert segments of paths by these; before any route is added."""
    blueprint.record(lambda state: state.app.url_map.converters.update(kinds))


def add_routes(blueprint: Blueprint, *all_views: object) -> Blueprint:
    """Add the routes of objects' methods to a blueprint, and return it."""
    for views in all_views:
        for verb, path, endpoint, view in routes_of(views):
            blueprint.add_url_rule(path, endpoint, view, methods=[verb])
    return blueprint


NAME: Final = "^[A-Za-z0-9._-]{1,249}$"
MEMBER: Final = "^[A-Za-z0-9._:@~+-]{1,249}$"
PULSAR: Final = "^[A-Za-z0-9._=:-]{1,249}$"
STREAM: Final = "^[A-Za-z0-9_%-]{1,249}$"
"""A name of a stream: a dot of its topic's name is `%2E`."""
_MARK: Final = r"(@(earliest|latest|[0-9]{1,15})|@?[0-9]{1,19}\.[0-9]{1,19}(\.[0-9]{1,10})?)"
ID: Final = r"([0-9]{1,19}:[0-9]{1,19}:-?[0-9]{1,9}(:[0-9]{1,9})?|[A-Za-z0-9+/_-]+=*)"
"""A message's id, in Apache Pulsar's form or in PIP 64's."""
MARKS: Final = rf"^({_MARK}(,{_MARK})*|{ID})?$"
"""Where a stream goes on: in each partition, or behind a message."""
PLACE: Final = rf"^(earliest|latest|[0-9]{{1,15}}|[0-9]{{4}}-[0-9T:.Z+-]+|{ID})?$"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
ADDRESS: Final = (
    rf"^({_BYTE}(\.{_BYTE}){{3}}|[0-9a-f]{{1,4}}(:[0-9a-f]{{1,4}}){{7}}|[0-9a-f:]*::[0-9a-f:]*)$"
)


def _segment(name: str, meaning: str, pattern: str = "") -> Parameter:
    return Parameter(name, meaning, place="path", pattern=pattern)


def _number(name: str, meaning: str) -> Parameter:
    return Parameter(name, meaning, ParameterKind.NUMBER, place="path", limit=2**63 - 1)


_ALL: Final = (
    _segment("topic", "Name of the topic.", NAME),
    _segment("group", "Name of the consumer group.", MEMBER),
    _segment("consumer", "Id of the consumer.", MEMBER),
    Parameter("role", "Which list.", ParameterKind.CHOICE, ("producers", "consumers"), "path"),
    _segment("key", "Name of the API key or user.", MEMBER),
    _segment("ip", "Address, or network with `/` as `%2F`.", ADDRESS),
    _segment("bits", "Bits of the network's prefix.", "^([0-9]|[12][0-9]|3[0-2])$"),
    _segment("number", "Any text."),
    _segment("name", "Name."),
    _segment("message", "Id of the message.", f"^{ID}$"),
    _segment("subject", "Subject: words with dots between.", "^[^ /]{1,255}$"),
    _segment("stream", "Name of the stream.", STREAM),
    _segment("transaction", "Id of the transaction, or transactional id of its producer."),
    _segment("digest", "Digest of the running build."),
    _segment("tenant", "Name of the tenant.", PULSAR),
    _segment("namespace", "Name of the namespace.", PULSAR),
    Parameter("domain", "Domain.", ParameterKind.CHOICE, ("persistent", "non-persistent"), "path"),
    _segment("subscription", "Name of the subscription.", MEMBER),
    _number("partition", "Number of the partition, from 0 on."),
    _segment("cluster", "Name of the cluster, `standalone`."),
    _segment("broker", "Address of the broker, as it is listed."),
    _number("version", "Version of the schema."),
    _number("position", "Which entry, from 1 on."),
    _number("ledger", "Ledger of the message's id."),
    _number("entry", "Entry of the message's id."),
    _number("count", "Number of entries."),
    _number("seconds", "Age in seconds."),
    _number("timestamp", "Milliseconds since 1970."),
)
SEGMENTS: Final[Mapping[str, Parameter]] = {segment.name: segment for segment in _ALL}
