"""`/lookup/v2`: where clients with an `http://` service URL find the broker of a topic.

It is where `broker.advertised` says, and else where the broker listens; a broker that listens on
every address is named by the host that the request was sent to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import Blueprint, Response, request

from router.backends.embedded.administration import Administration
from router.settings import Settings
from router.web.access import Right
from router.web.addresses import root
from router.web.openapi.description import (
    OBJECT,
    answers_json,
    operation,
)
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.door import Door
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.paths import answer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

LOOKUP = "/lookup/v2/topic/<pulsar_domain:domain>/<tenant>/<namespace>/<topic>"
_LISTENERS = {"pulsar": "broker.pulsar", "pulsar+ssl": "broker.pulsar_tls"}
_EVERYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - what settings may say


class Addresses:
    """Where Pulsar clients find the broker."""

    def __init__(self, settings: Settings) -> None:
        self._advertised = [url.strip() for url in settings.text("broker.advertised").split(",")]
        self._listeners = {scheme: settings.text(name) for scheme, name in _LISTENERS.items()}

    def urls(self, environ: WSGIEnvironment) -> dict[str, str]:
        """Return the URL for each scheme that is served, as who asks can reach it."""
        told = {url.partition("://")[0]: url for url in self._advertised if url}
        if told:
            return told
        return {
            scheme: url
            for scheme, listener in self._listeners.items()
            if (url := _url(scheme, listener, environ))
        }


class LookupViews:
    """The view of lookups."""

    def __init__(self, door: Door, administration: Administration, addresses: Addresses) -> None:
        self._door = door
        self._administration = administration
        self._addresses = addresses

    def add(self, routes: Blueprint) -> None:
        """Add the route."""
        routes.get(LOOKUP)(self.look_up)

    @operation(
        answers=answers_json(OBJECT, "Its addresses."),
        fails=shapes.LOOKING,
        refuses=shapes.NO_NAME | {412: "The name is not allowed, or no Pulsar listener is on."},
    )
    def look_up(self, **path: str) -> Response:
        """Answer the broker of a topic, whether the topic exists or not."""
        name = self._door.topic(Right.VIEW, path).topic
        self._administration.look_up(str(name))
        urls = self._addresses.urls(request.environ)
        if not urls:
            raise RefusedError(
                412,
                "Pulsar clients are not served here, or on a port that is not known: set"
                " broker.pulsar (--pulsar) or broker.advertised",
            )
        here = root(request.environ)
        told = {"httpUrlTls" if here.startswith("https:") else "httpUrl": here, "brokerUrlSsl": ""}
        if plain := urls.get("pulsar"):
            told |= {"brokerUrl": plain, "nativeUrl": plain}
        if secure := urls.get("pulsar+ssl"):
            told |= {"brokerUrlTls": secure, "brokerUrlSsl": secure}
        return answer(told)


def _url(scheme: str, listener: str, environ: WSGIEnvironment) -> str:
    """Return where a listener is reached, empty: it is off, or on a port that nobody knows yet."""
    host, _, port = listener.rpartition(":")
    if port in {"", "0"}:
        return ""
    if host.strip("[]") in _EVERYWHERE:
        host = urlsplit(root(environ)).hostname or "localhost"
        host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}"
