"""The paths of PIP 64: with and without the domain, `persistent` or `non-persistent`, in front.

DMaaP's routes below `/topics/<topic>` stay what they are: in the short form no namespace is named
as one of theirs (`/topics/<topic>/producers/<key>`), and no tenant as `groups`; with the domain in
front every namespace is reachable.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from flask import Blueprint
from werkzeug.routing import BaseConverter

from router.model import NON_PERSISTENT, PERSISTENT, TopicName
from router.web.front import PIP64_TOPICS
from router.web.openapi.description import routes_of
from router.web.requests import decode

# What ends the names of the endpoints of a path that names this domain.
_ENDINGS: Final = {None: "", PERSISTENT: "_long", NON_PERSISTENT: "_np"}
MAX_CACHED_NAMES: Final = 8_192


class _Tenant(BaseConverter):
    part_isolating = True
    regex = r"(?!groups$)[^/]+"


class _Namespace(BaseConverter):
    part_isolating = True
    regex = r"(?!(?:producers|consumers|groups)$)[^/]+"


CONVERTERS: Final = {"pip64_tenant": _Tenant, "pip64_namespace": _Namespace}


def add(routes: Blueprint, views: object) -> None:
    """Add the routes of an object's methods, where `<topic>` stands for each form of its path."""
    for method, below, endpoint, view in routes_of(views):
        for domain, prefix in PIP64_TOPICS.items():
            # One view may serve two spellings of a path; the endpoints of routes are unique.
            suffix = _ENDINGS[domain] + ("_plural" if "/consumers/" in below else "")
            routes.add_url_rule(
                prefix + below.removeprefix("<topic>"),
                endpoint + suffix,
                view,
                methods=[method],
                defaults={"domain": domain or PERSISTENT},
            )


@lru_cache(maxsize=MAX_CACHED_NAMES)
def topic_name(domain: str, tenant: str, namespace: str, topic: str) -> TopicName:
    """Return the topic that a path names; raise BadNameError."""
    return TopicName.from_segments(domain, decode(tenant), decode(namespace), decode(topic))
