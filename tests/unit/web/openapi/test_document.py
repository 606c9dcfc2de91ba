"""`/openapi.json`: it describes the routes that there are, and all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from openapi_spec_validator import OpenAPIV31SpecValidator

from router.errors import by_code
from router.web.openapi.description import ATTRIBUTE, Operation, operation
from router.web.openapi.dialects import dialects
from router.web.openapi.document import UNLISTED, UndescribedError, document
from tests.unit.web.applications import HASHES, Site
from tests.unit.web.unreadable import all_routes

Sites = Callable[..., Site]
DOCS = Path(__file__).parents[4] / "docs"
PAGES = {
    "pulsar_rest": ("pulsar-rest.md", "http.md"),
    "pulsar_admin": ("pulsar-admin.md",),
    "console": ("console.md", "pulsar-rest.md"),
    "jetstream": ("jetstream-http.md",),
    "jetstream_light": ("jetstream-http.md",),
}


def paths(app: Flask) -> dict[str, Any]:
    found: dict[str, Any] = app.test_client().get("/openapi.json").get_json()["paths"]
    return found


def named(rule: str) -> str:
    return re.sub(r"<(?:[a-z0-9_]+:)?([a-z]+)>", r"{\1}", rule)


def methods(app: Flask) -> set[str]:
    """Return the routes of an application as the description writes them."""
    return {
        f"{method} {named(rule.rule)}"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - UNLISTED
        if not rule.endpoint.endswith((".other", ".unknown"))
    }


@pytest.mark.slow
def test_description_is_openapi_3_1(everything: Flask) -> None:
    document = everything.test_client().get("/openapi.json").get_json()
    assert document["openapi"] == "3.1.0"
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


@pytest.mark.slow
def test_description_has_the_routes_that_there_are(everything: Flask, site: Site) -> None:
    for app in (everything, site.app):
        described = {
            f"{method.upper()} {path}"
            for path, operations in paths(app).items()
            for method in operations
        }
        assert described == methods(app)


def test_every_operation_says_what_it_does_and_how_it_fails(everything: Flask) -> None:
    seen = set()
    for path, operations in paths(everything).items():
        names = re.findall(r"\{(\w+)\}", path)
        for method, found in operations.items():
            assert found["operationId"] not in seen, (method, path)
            seen.add(found["operationId"])
            assert found["summary"], (method, path)
            described = [p for p in found.get("parameters", []) if p["in"] == "path"]
            assert sorted(p["name"] for p in described) == sorted(names), (method, path)
            assert all(p["required"] for p in described), (method, path)
            assert {"400", "403", "500"} <= found["responses"].keys(), (method, path)
            assert ("401" in found["responses"]) == bool(found["security"]), (method, path)


def test_failures_have_the_form_of_their_dialect(everything: Flask) -> None:
    document = everything.test_client().get("/openapi.json").get_json()
    for path, error, kind in (
        ("/events/{topic}", "DmaapError", "application/json"),
        ("/topics/{tenant}/{namespace}/{topic}", "PulsarRestError", "application/json"),
        ("/admin/v2/tenants/{tenant}", "PulsarAdminError", "application/json"),
        ("/console/topics", "Problem", "application/problem+json"),
        ("/openapi.json", "Problem", "application/problem+json"),
    ):
        for found in document["paths"][path].values():
            name = found["responses"]["403"]["$ref"].rpartition("/")[2]
            content = document["components"]["responses"][name]["content"]
            assert content[kind]["schema"] == {"$ref": f"#/components/schemas/{error}"}


def test_every_parameter_of_the_query_is_on_a_page_of_the_documentation(everything: Flask) -> None:
    missing = []
    for route in all_routes(everything):
        pages = PAGES.get(route.rule.endpoint.partition(".")[0], ("http.md", "pulsar-rest.md"))
        page = "".join((DOCS / name).read_text(encoding="utf-8") for name in pages)
        for parameter in route.operation.parameters:
            pattern = rf"`\??&?{parameter.name}\b|[?&]{parameter.name}="
            if parameter.place == "query" and not re.search(pattern, page):
                missing.append(f"{parameter.name} of {route.path} in docs/{pages[0]}")
    assert not missing, "\n".join(missing)


@pytest.mark.slow
def test_statuses_are_those_that_settings_ask_for(sites: Sites) -> None:
    usual = paths(sites().app)["/topics/{topic}"]["get"]["responses"]
    assert "403" in usual
    legacy = sites(auth_forbidden_status="401", consume_limit_status="503")
    found = paths(legacy.app)["/events/{topic}/{group}/{consumer}"]["get"]["responses"]
    assert "429" not in found


def test_credentials_may_be_left_out_where_the_router_has_no_users(
    sites: Sites, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{HASHES['bcrypt']}\n")
    for settings, anonymous in (({}, True), ({"auth_users": str(users)}, False)):
        answer = sites(**settings).client.get("/openapi.json")
        assert answer.status_code == 200
        found = answer.get_json()["paths"]["/topics"]["get"]["security"]
        assert ({} in found) is anonymous
        assert {"basic": []} in found


def test_description_is_sent_once(site: Site) -> None:
    answer = site.client.get("/openapi.json")
    tag = answer.headers["ETag"]
    assert answer.headers["Cache-Control"] == "no-cache"
    again = site.client.get("/openapi.json", headers={"If-None-Match": tag})
    assert (again.status_code, again.data) == (304, b"")
    assert again.headers["ETag"] == tag
    for known in (f'"x", W/{tag}', "*"):
        again = site.client.get("/openapi.json", headers={"If-None-Match": known})
        assert again.status_code == 304
    # None of these says that the client has what is there.
    for headers in (
        {"If-None-Match": '"x"'},
        {"If-None-Match": "x, ,"},
        {"If-Match": '"x"'},
        {"If-Modified-Since": "Mon, 23 Nov 2099 00:00:00 GMT"},
        {"Range": "bytes=0-9"},
        {"Accept": "image/png;q=x"},
    ):
        assert site.client.get("/openapi.json", headers=headers).data == answer.data
    assert site.client.get("/openapi.json?" + "&".join("abc" * 99)).data == answer.data
    assert site.client.get("/openapi.json/").data == answer.data
    head = site.client.head("/openapi.json")
    assert (head.data, head.headers["Content-Length"]) == (b"", str(len(answer.data)))


def test_server_is_where_the_proxy_has_it(sites: Sites) -> None:
    assert sites().client.get("/openapi.json").get_json()["servers"] == [{"url": "/"}]
    site = sites(server_trusted_proxies="127.0.0.1")
    for prefix, url in (("/mr", "/mr"), ("/a/b/", "/a/b"), ("", "/"), ('/"><x', "/")):
        headers = {"X-Forwarded-Prefix": prefix}
        answer = site.client.get("/openapi.json", headers=headers)
        assert answer.get_json()["servers"] == [{"url": url}]


def refusal(app: Flask) -> str:
    with pytest.raises(UndescribedError) as caught:
        list(all_routes(app))
    return str(caught.value)


def test_route_without_a_description_is_named_with_what_to_do(site: Site) -> None:
    def view() -> str:
        """Answer."""
        return ""

    site.app.add_url_rule("/new", "console.new", view)
    sentence = refusal(site.app)
    assert sentence.startswith("/new: put @operation(...) above")
    assert f"in {__name__}" in sentence


def test_segment_without_a_description_is_named_with_what_to_do(site: Site) -> None:
    @operation()
    def view(colour: str) -> str:
        """Answer."""
        return colour

    site.app.add_url_rule("/new/<colour>", "console.new", view)
    [route] = [route for route in all_routes(site.app) if route.path == "/new/{colour}"]
    with pytest.raises(UndescribedError, match=r"add <colour> to SEGMENTS in router/web/openapi"):
        assert route.segments


@pytest.mark.parametrize(
    ("endpoint", "more", "sentence"),
    [
        ("other.new", {}, r"say in router/web/openapi/dialects\.py which dialect"),
        ("console.new", {"fails": ("no-such",)}, r"no-such is no code of router/errors"),
    ],
)
def test_description_that_cannot_be_written_says_why(
    site: Site, endpoint: str, more: Mapping[str, Any], sentence: str
) -> None:
    def view() -> str:
        """Answer."""
        return ""

    setattr(view, ATTRIBUTE, Operation(**more))
    site.app.add_url_rule("/new", endpoint, view)
    view_of: Any = site.app.view_functions["openapi.description"]
    forms = dialects(view_of.__self__._texts)
    with pytest.raises(UndescribedError, match=sentence):
        document(iter(all_routes(site.app)), forms, anonymous=True)


def test_every_code_has_a_status_in_every_dialect(site: Site) -> None:
    view: Any = site.app.view_functions["openapi.description"]
    for dialect in dialects(view.__self__._texts).values():
        for code in by_code():
            assert 400 <= dialect.status(code, "") <= 599
