"""The paths of PIP 64: with and without the domain, `persistent` or `non-persistent`, in front.

DMaaP's routes below `/topics/<topic>` stay what they are: in the short form no namespace is named
as one of theirs (`/topics/<topic>/producers/<key>`), and no tenant as `groups`; with the domain in
front every namespace is reachable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from flask import Blueprint
from werkzeug.routing import BaseConverter

from router.errors import BadNameError
from router.model import TopicName
from router.quoting import quoted
from router.web.names import decode

SHORT: Final = "/topics/<pip64_tenant:tenant>/<pip64_namespace:namespace>/<topic>"
LONG: Final = (
    "/topics/persistent/<pip64_tenant:tenant>/<namespace>/<topic>",
    "/topics/non-persistent/<pip64_tenant:tenant>/<namespace>/<topic>",
)
NON_PERSISTENT: Final = "non-persistent"


class _Tenant(BaseConverter):
    part_isolating = True
    regex = r"(?!groups$)[^/]+"


class _Namespace(BaseConverter):
    part_isolating = True
    regex = r"(?!(?:producers|consumers|groups)$)[^/]+"


def converters(routes: Blueprint) -> None:
    """Have the application know the names that paths use; before any route is added."""

    def add(state: Any) -> None:
        state.app.url_map.converters["pip64_tenant"] = _Tenant
        state.app.url_map.converters["pip64_namespace"] = _Namespace

    routes.record(add)


def route(routes: Blueprint, method: str, below: str, view: Callable[..., Any]) -> None:
    """Add a route below a topic, in all its forms."""
    for at, prefix in enumerate((SHORT, *LONG)):
        defaults = {"domain": NON_PERSISTENT if at == 2 else "persistent"}
        endpoint = view.__name__ if at == 0 else f"{view.__name__}_{'long' if at == 1 else 'np'}"
        routes.add_url_rule(
            prefix + below, endpoint + _suffix(below), view, methods=[method], defaults=defaults
        )


def _suffix(below: str) -> str:
    # One view may serve two spellings of a path; the endpoints of routes are unique.
    return "_plural" if "/consumers/" in below else ""


def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """Return the topic that a path names; raise BadNameError."""
    parts = [decode(part) for part in (tenant, namespace, topic)]
    for part in parts:
        if "/" in part:
            raise BadNameError(f"{quoted(part)}: a name in a path holds no slash")
    return TopicName.parse(f"{domain}://{'/'.join(parts)}")
