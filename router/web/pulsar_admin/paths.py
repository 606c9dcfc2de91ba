"""Paths, bodies and answers of the administration: what its views have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from flask import Blueprint, Response, request
from werkzeug.routing import BaseConverter

from router.errors import BadJsonError, BadNameError, BadRequestError
from router.model import TopicName
from router.quoting import quoted
from router.web import intake
from router.web.names import decode
from router.web.parameters import MAX_NUMBER, Query

ADMIN: Final = "/admin/v2"
TENANT: Final = f"{ADMIN}/tenants"
NAMESPACE: Final = f"{ADMIN}/namespaces/<tenant>/<namespace>"
TOPICS: Final = f"{ADMIN}/<pulsar_domain:domain>/<tenant>/<namespace>"
TOPIC: Final = f"{TOPICS}/<topic>"
SCHEMA: Final = f"{ADMIN}/schemas/<tenant>/<namespace>/<topic>"
MAX_BODY: Final = 1 << 20
_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}")

View = Callable[..., Response]


class _Domain(BaseConverter):
    regex = "persistent|non-persistent"


def converters(routes: Blueprint) -> None:
    """Have the application know the words that paths use; before any route is added."""

    def add(state: Any) -> None:
        state.app.url_map.converters["pulsar_domain"] = _Domain

    routes.record(add)


def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """Return the topic that a path names; raise BadNameError."""
    local = decode(topic)
    if "/" in local:
        raise BadNameError(f"{quoted(local)}: a topic's name holds no slash")
    return TopicName.parse(f"{domain}://{namespace_name(tenant, namespace)}/{local}")


def namespace_name(tenant: str, namespace: str) -> str:
    """Return the namespace that a path names, as `tenant/namespace`; raise BadNameError."""
    parts = [decode(part) for part in (tenant, namespace)]
    name = TopicName.parse("persistent://" + "/".join([*parts, "x"]))
    if [name.tenant, name.namespace] != parts:
        raise BadNameError(f"{quoted('/'.join(parts))} is no namespace")
    return "/".join(parts)


def subscription_name(segment: str) -> str:
    """Return the subscription that a path names; raise BadNameError.

    Official clients escape it as in a form and then once more as a part of a path, and Pulsar
    undoes both, whoever asks: `+` is a blank, and `%252B` a plus sign.
    """
    once = decode(segment).replace("+", " ")
    return decode(once) if _ESCAPED.search(once) else once


def flag(name: str, *, default: bool = False) -> bool:
    """Return a query parameter that is true or false; raise BadReadOptionError."""
    # As in Pulsar an empty text is not true: it never deletes by force.
    return Query(request.environ).flag(name, default=default, bare=default)


def given() -> Any:
    """Return what the body says in JSON, None: there is none; raise BadJsonError."""
    body = intake.body(request.environ, MAX_BODY)
    if not body.strip():
        return None
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadJsonError(f"the body is no JSON: {error}") from error
    # The official clients send an empty text where they have nothing to say.
    return None if found == "" else found


def given_object() -> dict[str, Any]:
    """Return the object in the body, an empty one where there is none; raise BadJsonError."""
    found = given()
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadJsonError("the body is to be a JSON object")
    return found


def given_flag() -> bool:
    """Return the true or false in the body; raise BadRequestError."""
    found = given()
    if not isinstance(found, bool):
        raise BadRequestError("the body is to be true or false")
    return found


def texts(value: object, what: str) -> dict[str, str]:
    """Return an object of texts; raise BadRequestError."""
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise BadRequestError(f"{what}: expected an object of texts")
    return dict(value)


def whole(value: object, what: str, least: int = -1) -> int:
    """Return a whole number of a body; raise BadRequestError."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_NUMBER:
        raise BadRequestError(f"{what}: expected a whole number from {least} on")
    return value


def answer(value: object, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return Response(orjson.dumps(value), status=status, mimetype="application/json")


def done() -> Response:
    """Return the answer to a change."""
    return _bare(Response(status=204))


def nothing() -> Response:
    """Return the answer that there is no such policy: no body, and no type of one."""
    return _bare(Response(b""))


def _bare(empty: Response) -> Response:
    del empty.headers["Content-Type"]
    return empty
