"""What stands beside a route: the parameters, body, answers and failures of an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack

Schema = Mapping[str, Any]
View = TypeVar("View", bound=Callable[..., Any])

ATTRIBUTE: Final = "described"
"""The attribute of a view that has its Operation."""
JSON: Final = "application/json"
HTML: Final = "text/html"
ANY: Final[Schema] = {}
OBJECT: Final[Schema] = {"type": "object"}
TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
EVENTS: Final[Schema] = {}
"""Server-sent events, which OpenAPI 3.1 has no words for."""

TOPIC: Final = ("topic-not-found",)
"""What a route that needs its topic may fail with."""
STORE: Final = ("backend-unavailable", "backend-timeout", "coordination-unavailable")
"""What a route that asks the store or the node's broker may fail with."""
BODY: Final = ("batch-too-large", "unsupported-encoding")
"""What a route that reads a body may fail with."""


_NONE: Final[Mapping[Any, Any]] = {}


class Kind(Enum):
    """How a parameter is read (`router.web.parameters`)."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    MOMENT = "moment"
    TARGET = "target"


class Parameter(NamedTuple):
    """A parameter of the query, a header, or a segment of the path."""

    name: str
    meaning: str
    kind: Kind = Kind.TEXT
    choices: tuple[str, ...] = ()
    place: str = "query"
    pattern: str = ""


def text(name: str, meaning: str, pattern: str = "") -> Parameter:
    """Return a parameter that is any text, or one that fits a pattern."""
    return Parameter(name, meaning, pattern=pattern)


def number(name: str, meaning: str) -> Parameter:
    """Return a parameter that is a whole number."""
    return Parameter(name, meaning, Kind.NUMBER)


def flag(name: str, meaning: str) -> Parameter:
    """Return a parameter that is true or false."""
    return Parameter(name, meaning, Kind.FLAG)


def choice(name: str, choices: Iterable[str], meaning: str) -> Parameter:
    """Return a parameter that is one of several words."""
    return Parameter(name, meaning, Kind.CHOICE, tuple(choices))


def moment(name: str, meaning: str) -> Parameter:
    """Return a parameter that is the earliest, the latest, or a time."""
    return Parameter(name, meaning, Kind.MOMENT)


def target(name: str, meaning: str) -> Parameter:
    """Return a parameter that is what `moment` is, or positions."""
    return Parameter(name, meaning, Kind.TARGET)


def header(name: str, meaning: str) -> Parameter:
    """Return a header that the route reads."""
    return Parameter(name, meaning, place="header")


TRACED: Final = (
    header("traceparent", "The W3C trace context that the messages carry; ignored if invalid."),
    header("tracestate", "What else belongs to that context."),
)
"""Headers of a route that stores messages."""


class Body(NamedTuple):
    """A request's body, by its media types; `examples` by the same."""

    kinds: Mapping[str, Schema]
    meaning: str = ""
    required: bool = True
    examples: Mapping[str, Any] = _NONE


class Reply(NamedTuple):
    """An answer: what it means, and its body by media types, none if it has no body."""

    meaning: str
    kinds: Mapping[str, Schema] = _NONE


def answers_json(schema: Schema = OBJECT, meaning: str = "Done.") -> Mapping[int, Reply]:
    """Return the answer 200 in JSON."""
    return {200: Reply(meaning, {JSON: schema})}


_DONE: Final = answers_json()


def answers_nothing(meaning: str = "Done.") -> Mapping[int, Reply]:
    """Return the answer 204."""
    return {204: Reply(meaning)}


def shape(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these fields."""
    found: dict[str, Any] = {"type": "object", "properties": {**required, **(optional or {})}}
    return found | ({"required": list(required)} if required else {})


def array(items: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": items}


def nullable(kind: str) -> Schema:
    """Return the schema of a value of a type, or null."""
    return {"type": [kind, "null"]}


def one_of(words: Iterable[str]) -> Schema:
    """Return the schema of one of several words."""
    return {"type": "string", "enum": list(words)}


class Operation(NamedTuple):
    """What a route does, beside what its path and its view's docstring say.

    `fails`: stable codes of `router.errors`; its dialect says which statuses they are. What every
    route may fail with, what credentials, names and bodies may, need not be said. `refuses`:
    statuses that no code stands for. `public`: it asks for no credentials. `hidden`: it serves
    nothing but refusals, and is no part of the document.
    """

    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    answers: Mapping[int, Reply] = _DONE
    fails: tuple[str, ...] = STORE
    refuses: Mapping[int, str] = _NONE
    public: bool = False
    hidden: bool = False
    notes: str = ""


class _More(TypedDict, total=False):
    """The fields of Operation beside the parameters."""

    body: Body
    answers: Mapping[int, Reply]
    fails: tuple[str, ...]
    refuses: Mapping[int, str]
    public: bool
    hidden: bool
    notes: str


def operation(*parameters: Parameter, **more: Unpack[_More]) -> Callable[[View], View]:
    """Return a decorator that describes a view; the arguments are the fields of Operation."""
    made = Operation(parameters, **more)

    def mark(view: View) -> View:
        setattr(view, ATTRIBUTE, made)
        return view

    return mark


def described(view: Callable[..., Any]) -> Operation | None:
    """Return what stands beside a view, None: nothing."""
    found: Operation | None = getattr(view, ATTRIBUTE, None)
    return found
