"""Paths, bodies and answers of the administration: what its views have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from flask import Response, request
from werkzeug.routing import BaseConverter

from router.errors import BadJsonError, BadRequestError, ForeignPageError, RouterError
from router.errors.quoting import json_failure
from router.model import TopicName, check_namespace
from router.web import requests
from router.web.dmaap.errors import DENIALS, TABLE, retry_after
from router.web.errors import FailureAnswers, failure_answer
from router.web.requests import MAX_NUMBER, Query, decode

ADMIN: Final = "/admin/v2"
TENANT: Final = f"{ADMIN}/tenants"
NAMESPACE: Final = f"{ADMIN}/namespaces/<tenant>/<namespace>"
TOPICS: Final = f"{ADMIN}/<pulsar_domain:domain>/<tenant>/<namespace>"
TOPIC: Final = f"{TOPICS}/<topic>"
SCHEMA: Final = f"{ADMIN}/schemas/<tenant>/<namespace>/<topic>"
MAX_BODY: Final = 1 << 20
_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}")

View = Callable[..., Response]
# Where Pulsar's status is another than that of the DMaaP Message Router.
STATUS: Final[Mapping[str, int]] = {
    "bad-name": 412,
    "invalid-schema": 422,
    "not-allowed": 405,
    "not-supported": 405,
    "subscription-busy": 412,
    "subscription-limit": 412,
}


class _Domain(BaseConverter):
    regex = "persistent|non-persistent"


CONVERTERS: Final = {"pulsar_domain": _Domain}


def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """Return the topic that a path names; raise BadNameError."""
    return TopicName.from_segments(domain, decode(tenant), decode(namespace), decode(topic))


def namespace_name(tenant: str, namespace: str) -> str:
    """Return the namespace that a path names, as `tenant/namespace`; raise BadNameError."""
    return "/".join(check_namespace(f"{decode(tenant)}/{decode(namespace)}"))


def subscription_name(segment: str) -> str:
    """Return the subscription that a path names; raise BadNameError.

    Official clients escape it as in a form and then once more as a part of a path, and Pulsar
    undoes both for every client: `+` is a blank, and `%252B` a plus sign.
    """
    once = decode(segment).replace("+", " ")
    return decode(once) if _ESCAPED.search(once) else once


def flag(name: str, *, default: bool = False) -> bool:
    """Return a query parameter that is true or false; raise BadReadOptionError."""
    # As in Pulsar an empty text is not true: it never deletes by force.
    return Query(request.environ).flag(name, default=default, bare=default)


def body_json() -> Any:
    """Return the JSON of the body, None: there is none; raise BadJsonError."""
    body = requests.body(request.environ, MAX_BODY)
    if not body.strip():
        return None
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadJsonError(f"the body is no JSON: {json_failure(body, error)}") from error
    # The official clients send an empty text for no value.
    return None if found == "" else found


def body_object() -> dict[str, Any]:
    """Return the object in the body, an empty one where there is none; raise BadJsonError."""
    found = body_json()
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadJsonError("the body is to be a JSON object")
    return found


def texts(value: object, what: str) -> dict[str, str]:
    """Return an object of texts; raise BadRequestError."""
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
        raise BadRequestError(f"{what}: expected an object of texts")
    return dict(value)


def whole(value: object, what: str, least: int = -1) -> int:
    """Return a whole number of a body; raise BadRequestError."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number: 2.0 is 2
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_NUMBER:
        raise BadRequestError(f"{what}: expected a whole number from {least} on")
    return value


def done() -> Response:
    """Return the answer to a change."""
    return _bare(Response(status=204))


def nothing() -> Response:
    """Return the answer that there is no such policy: no body, and no type of one."""
    return _bare(Response(b""))


def _bare(empty: Response) -> Response:
    del empty.headers["Content-Type"]
    return empty


class AdminRefusedError(BadRequestError):
    """The request cannot be served, for a reason that has a status of its own in Pulsar."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def status_of(error: RouterError) -> int:
    """Return the status of a failure."""
    if isinstance(error, AdminRefusedError):
        return error.status
    found = STATUS.get(error.code)
    return TABLE[error.code].status if found is None else found


class PulsarAdminFailures(FailureAnswers):
    """Turns what the views of the administration raise into answers."""

    def __init__(self, forbidden_status: int) -> None:
        self._forbidden = forbidden_status

    def failed(self, error: RouterError) -> Response:
        """Answer a failure."""
        status = status_of(error)
        if error.code in DENIALS and not isinstance(error, ForeignPageError):
            status = self._forbidden
        after = retry_after(error, TABLE[error.code]) if status in {429, 503} else None
        return failure_answer(status, {"reason": str(error)}, after)
