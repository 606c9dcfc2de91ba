"""Puts the description together: from the routes of an application and what stands beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from werkzeug.routing import Map, Rule

from router.errors import by_code
from router.process.build import VERSION
from router.web.openapi import description as api
from router.web.openapi.dialects import ERRORS, ErrorDialect

UNLISTED: Final = frozenset({"HEAD", "OPTIONS"})
"""Methods that every route has by itself."""
ALWAYS: Final = ("bad-request", "forbidden", "blacklisted", "internal")
"""What every route may fail with: the query, the host or origin, the address, a mistake of ours."""
CREDENTIALS: Final = ("unauthenticated", "access-denied", "too-many-requests", "overloaded")
"""What a route that asks for credentials may fail with."""
TITLE: Final = "Dragoman"
ABOUT: Final = """\
Topics, consumer groups and long polls over HTTP, in several dialects over one log. Each dialect has
its own form of errors.

- Every GET route answers HEAD and every route OPTIONS; neither consumes anything. A path that ends
  in a slash means the same without it.
- Query parameters that a route does not know are ignored. One that cannot be read is refused.
- A request that the server cannot read (400, 408, 414, 431, 501 or 505) is refused in DMaaP's form
  at every path.
- 429 and 503 come with `Retry-After` where a later try may help.
"""
_SEGMENT: Final = re.compile(r"<(?:\w+:)?(\w+)>")
_MOMENTS: Final[Sequence[api.Schema]] = (
    {"type": "string", "enum": ["earliest", "latest"]},
    {"type": "string", "pattern": "^[0-9]{1,15}$"},
    {"type": "string", "format": "date-time"},
    {"const": ""},
)
_POSITIONS: Final[api.Schema] = {
    "type": "string",
    "description": "`ledger:entry:partition`, with commas between them.",
    "pattern": "^[0-9]{1,9}:[0-9]{1,9}:[0-9]{1,4}$",
}
_KINDS: Final[Mapping[api.ParameterKind, api.Schema]] = {
    api.ParameterKind.FLAG: {"type": "boolean"},
    api.ParameterKind.MOMENT: {"anyOf": list(_MOMENTS)},
    api.ParameterKind.TARGET: {"anyOf": [*_MOMENTS, _POSITIONS]},
}
_RETRIED: Final = frozenset({429, 503})
_SECURITY: Final[Mapping[str, api.Schema]] = {
    "basic": {"type": "http", "scheme": "basic", "description": "Name and password of a user."},
    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CambriaAuth",
        "description": "`<key>:<base64 of the HMAC-SHA1 of X-CambriaDate by the key's secret>`;"
        " `X-Auth` and `X-Date` are read too, and with `X-Nonce` what is signed is"
        " `<date>:<nonce>`.",
    },
    "signatureDate": {"type": "apiKey", "in": "header", "name": "X-CambriaDate"},
    "certificate": {
        "type": "mutualTLS",
        "description": "A client certificate (`server.client_ca`).",
    },
}


class UndescribedError(LookupError):
    """A route has no description, or one that cannot be put together; says what to write where."""


@dataclass(frozen=True, slots=True)
class DocumentedRoute:
    """One method of one rule."""

    rule: Rule
    method: str
    operation: api.Operation
    summary: str

    @property
    def path(self) -> str:
        """Return the path as OpenAPI writes it."""
        return _SEGMENT.sub(r"{\1}", self.rule.rule)

    @property
    def segments(self) -> list[api.Parameter]:
        """Return the parameters of the path; raise UndescribedError for one that is not known."""
        names = _SEGMENT.findall(self.rule.rule)
        own = {one.name: one for one in self.operation.parameters if one.place == "path"}
        for name in names:
            if name not in api.SEGMENTS:
                raise UndescribedError(
                    f"{self.rule.rule}: add <{name}> to SEGMENTS in router/web/openapi"
                )
        return [own.get(name, api.SEGMENTS[name]) for name in names]


def routes(rules: Map, views: Mapping[str, Callable[..., Any]]) -> Iterator[DocumentedRoute]:
    """Yield the routes that serve something, by path; raise UndescribedError."""
    for rule in sorted(rules.iter_rules(), key=lambda found: found.rule):
        view = views[rule.endpoint]
        operation = api.described(view)
        if operation is None:
            raise UndescribedError(
                f"{rule.rule}: put @operation(...) above {view.__qualname__} in {view.__module__}"
                " (router/web/openapi/description.py says what it takes)"
            )
        if operation.hidden:
            continue
        summary = operation.summary or (view.__doc__ or "").strip().partition("\n")[0]
        for method in sorted((rule.methods or set()) - UNLISTED):
            yield DocumentedRoute(rule, method, operation, summary)


def document(
    found: Iterator[DocumentedRoute], dialects: Mapping[str, ErrorDialect], *, anonymous: bool
) -> dict[str, Any]:
    """Return the description without its servers; raise UndescribedError.

    `anonymous`: the router has no users, so that credentials may be left out.
    """
    making = _Making(dialects, anonymous=anonymous)
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, str] = {}
    for route in found:
        dialect = making.dialect(route)
        tags.setdefault(dialect.tag, dialect.meaning)
        paths.setdefault(route.path, {})[route.method.lower()] = making.operation(route, dialect)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": VERSION,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [],
        "tags": [{"name": name, "description": meaning} for name, meaning in tags.items()],
        "paths": paths,
        "components": {
            "schemas": ERRORS,
            "responses": making.responses,
            "headers": {
                "transactionId": {
                    "description": "Names the answer in the router's log.",
                    "schema": {"type": "string"},
                },
                "Retry-After": {
                    "description": "Seconds after which a retry may help.",
                    "schema": {"type": "string", "pattern": "^[0-9]+$"},
                },
            },
            "securitySchemes": _SECURITY,
        },
    }


class _Making:
    """Writes operations; failures with the same answer are written once, as `responses`."""

    def __init__(self, dialects: Mapping[str, ErrorDialect], *, anonymous: bool) -> None:
        self._dialects = dialects
        self._names: dict[tuple[str, int, str], str] = {}
        self._identities: dict[str, int] = {}
        self.responses: dict[str, Any] = {}
        known: list[dict[str, list[str]]] = [
            {"basic": []},
            {"bearer": []},
            {"signature": [], "signatureDate": []},
            {"certificate": []},
        ]
        self._security = [*known, {}] if anonymous else known

    def dialect(self, route: DocumentedRoute) -> ErrorDialect:
        """Return the dialect of a route; raise UndescribedError."""
        blueprint = route.rule.endpoint.partition(".")[0]
        if blueprint not in self._dialects:
            raise UndescribedError(
                f"{route.rule.rule}: say in router/web/openapi/dialects.py which dialect the"
                f" blueprint {blueprint} speaks"
            )
        return self._dialects[blueprint]

    def operation(self, route: DocumentedRoute, dialect: ErrorDialect) -> dict[str, Any]:
        operation = route.operation
        made: dict[str, Any] = {
            "operationId": self._identity(route),
            "tags": [dialect.tag],
            "summary": route.summary,
        }
        if operation.notes:
            made["description"] = operation.notes
        others = [one for one in operation.parameters if one.place != "path"]
        if parameters := [*route.segments, *others]:
            made["parameters"] = [_parameter(one) for one in parameters]
        if operation.body is not None:
            made["requestBody"] = _body(operation.body)
        answers = {status: _answer(answer) for status, answer in operation.answers.items()}
        failures = self._failures(route, dialect)
        both = answers | {status: at for status, at in failures.items() if status not in answers}
        made["responses"] = {str(status): both[status] for status in sorted(both)}
        made["security"] = [] if operation.public else self._security
        return made

    def _identity(self, route: DocumentedRoute) -> str:
        name = route.rule.endpoint.replace(".", "_")
        times = self._identities[name] = self._identities.get(name, 0) + 1
        return name if times == 1 else f"{name}_{times}"

    def _failures(self, route: DocumentedRoute, dialect: ErrorDialect) -> dict[int, dict[str, str]]:
        failures: dict[int, list[str]] = {}
        for code in _codes(route):
            if code not in by_code():
                raise UndescribedError(f"{route.rule.rule}: {code} is no code of router/errors")
            failures.setdefault(dialect.status(code, route.rule.endpoint), []).append(f"`{code}`")
        for status, sentence in route.operation.refuses.items():
            failures.setdefault(status, []).append(sentence)
        return {
            status: {"$ref": f"#/components/responses/{self._failure(dialect, status, words)}"}
            for status, words in failures.items()
        }

    def _failure(self, dialect: ErrorDialect, status: int, words: list[str]) -> str:
        """Return the name of the response that describes these failures."""
        sentence = f"{HTTPStatus(status).phrase}: {', '.join(sorted(set(words)))}"
        key = dialect.error, status, sentence
        if key not in self._names:
            number = 1 + sum(known[:2] == key[:2] for known in self._names)
            name = self._names[key] = f"{dialect.error}{status}-{number}"
            headers = ["transactionId"] + ["Retry-After"] * (status in _RETRIED)
            schema = {"$ref": f"#/components/schemas/{dialect.error}"}
            self.responses[name] = {
                "description": sentence,
                "headers": {n: {"$ref": f"#/components/headers/{n}"} for n in headers},
                "content": {dialect.kind: {"schema": schema}, **dialect.pages},
            }
        return self._names[key]


def _codes(route: DocumentedRoute) -> list[str]:
    operation = route.operation
    codes = [*ALWAYS, *operation.fails]
    if not operation.public:
        codes += CREDENTIALS
    if route.segments:
        codes.append("bad-name")
    if any(one.place != "header" for one in (*route.segments, *operation.parameters)):
        codes.append("bad-read-option")
    if operation.body is not None:
        codes += api.BODY
    return codes


def _parameter(parameter: api.Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.meaning,
        "required": parameter.required or parameter.place == "path",
        "schema": _schema(parameter),
    }


def _schema(parameter: api.Parameter) -> api.Schema:
    if parameter.kind is api.ParameterKind.CHOICE:
        return api.one_of(parameter.choices)
    if parameter.kind is api.ParameterKind.NUMBER:
        limit = {} if parameter.limit is None else {"maximum": parameter.limit}
        return {"type": "integer", "minimum": 0, **limit}
    if parameter.kind in _KINDS:
        return _KINDS[parameter.kind]
    if not parameter.pattern:
        return api.schema(str)
    return {**api.schema(str), "pattern": parameter.pattern}


def _body(body: api.BodyDescription) -> dict[str, Any]:
    content = {
        kind: {"schema": api.schema(form)}
        | ({"example": body.examples[kind]} if kind in body.examples else {})
        for kind, form in body.kinds.items()
    }
    return {"description": body.meaning, "required": body.required, "content": content}


def _answer(answer: api.ReplyDescription) -> dict[str, Any]:
    made: dict[str, Any] = {
        "description": answer.meaning,
        "headers": {"transactionId": {"$ref": "#/components/headers/transactionId"}},
    }
    if answer.kinds:
        made["content"] = {
            kind: {"schema": api.schema(form)} for kind, form in answer.kinds.items()
        }
    return made
