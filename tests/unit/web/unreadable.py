"""Texts that parameters of each kind cannot be read from, by what the routes' descriptions say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

from flask import Flask

from router.web.openapi.description import ParameterKind
from router.web.openapi.document import DocumentedRoute, routes

NUMBERS: Final = ["x", "-1", "1.5", "5s", "abc", "1e3", "+1", "0x10", "٣", " 1", "1 "]
FLAGS: Final = ["maybe", "2", "truee", "-", "t"]
CHOICES: Final = ["maybe", "NEXT", "next "]
MOMENTS: Final = ["noon", "-1", "2026-01-01", "Earliest", "1.5"]
TEXTS: Final[Mapping[ParameterKind, list[str]]] = {
    ParameterKind.NUMBER: NUMBERS,
    ParameterKind.FLAG: FLAGS,
    ParameterKind.CHOICE: CHOICES,
    ParameterKind.MOMENT: MOMENTS,
    ParameterKind.TARGET: [*MOMENTS, "1:2", "1:2:0,", "1:2:0,1:3:0"],
    ParameterKind.TEXT: [],
}
# Texts with a form of their own; of any other parameter that is a text, every text is one.
FORMS: Final[Mapping[str, list[str]]] = {
    "last_event_id": ["x", "@", "1.2,"],
    "schema_type": ["AVRO", "text"],
    "start": MOMENTS,
    "after": MOMENTS,
    "behind": ["x", "1", "1:2", "1:2:0,"],
}
EXAMPLES: Final[Mapping[str, str]] = {
    "topic": "t",
    "group": "g",
    "consumer": "c",
    "subscription": "s",
    "tenant": "public",
    "namespace": "default",
    "domain": "persistent",
    "digest": "0",
    "key": "k",
    "name": "n",
    "message": "1:0:-1",
    "ip": "192.0.2.1",
    "bits": "32",
    "cluster": "standalone",
}
# What is not there, so that a mistake deletes nothing that other tests need.
SPARED: Final = ("/admin/v2/tenants/{tenant}", "/admin/v2/namespaces/{tenant}/{namespace}")
STREAMS: Final = "stream"
"""In the endpoints of views that serve streams alone."""
Cases = dict[tuple[str, str], dict[str, list[str]]]


def all_routes(app: Flask) -> list[DocumentedRoute]:
    """Return the routes of an application."""
    return list(routes(app.url_map, app.view_functions))


def tables(app: Flask, blueprints: set[str]) -> Cases:
    """Return texts that cannot be read, by the methods and paths of blueprints, and parameters."""
    found: Cases = {}
    for route in all_routes(app):
        if route.rule.endpoint.partition(".")[0] in blueprints:
            for name, path, texts in _parameters(route):
                found.setdefault((route.method, path), {})[name] = texts
    return found


def example(route: DocumentedRoute, kept: str = "") -> str:
    """Return a path of a route; the segment `kept` keeps its place."""
    path = route.path
    names = EXAMPLES if path not in SPARED else {**EXAMPLES, "tenant": "none", "namespace": "none"}
    for segment in route.segments:
        if segment.name != kept:
            path = path.replace(f"{{{segment.name}}}", names.get(segment.name, "0"))
    return path


def _parameters(route: DocumentedRoute) -> Iterator[tuple[str, str, list[str]]]:
    for segment in route.segments:
        if segment.kind is ParameterKind.NUMBER:
            yield segment.name, example(route, segment.name), [*NUMBERS, "9" * 20, "9" * 9999]
    for parameter in route.operation.parameters:
        texts = FORMS.get(parameter.name, TEXTS[parameter.kind])
        if parameter.place != "query" or not texts or "/non-persistent/" in route.path:
            continue  # the last: no store of these tests has such topics
        streams = STREAMS in route.rule.endpoint and parameter.name != "stream"
        resumes = parameter.name in {"last_event_id", "sample"}
        yield parameter.name, example(route) + "?stream" * (streams or resumes), texts


def cases(
    table: Mapping[tuple[str, str], Mapping[str, list[str]]],
) -> list[tuple[str, str, list[str]]]:
    """Return method, name, and addresses with unreadable texts of each parameter of a table."""
    found = []
    for (method, path), parameters in table.items():
        for name, texts in parameters.items():
            place = f"{{{name}}}"
            if place not in path:
                path_with = f"{path}{'&' if '?' in path else '?'}{name}={place}"
            else:
                path_with = path
            urls = [path_with.replace(place, quote(text, safe="")) for text in texts]
            found.append((method, name, urls))
    return found


def with_heads(table: Cases) -> Cases:
    """Return a table in which HEAD has what GET has."""
    heads = {("HEAD", path): names for (method, path), names in table.items() if method == "GET"}
    return table | heads
