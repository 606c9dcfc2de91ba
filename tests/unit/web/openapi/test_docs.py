"""`/docs`: Swagger UI, with files of this router alone."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from router.web.console.pages import AGAIN, FOREVER
from tests.unit.web.applications import Site

Sites = Callable[..., Site]


def test_page_loads_files_of_this_router_alone(site: Site) -> None:
    answer = site.client.get("/docs")
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "style-src 'self' 'unsafe-inline'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy.replace("style-src 'self' 'unsafe-inline'", "")
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=", answer.text)
    files = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert len(files) > 4
    for name in files:
        found = site.client.get(name)
        assert found.status_code == 200, name
        assert found.headers["X-Content-Type-Options"] == "nosniff"
    script = site.client.get(next(name for name in files if name.endswith("docs.js")))
    # By default Swagger UI asks another host whether the description is valid.
    assert "validatorUrl: null" in script.text


def test_page_and_description_are_where_the_proxy_has_them(sites: Sites) -> None:
    site = sites(server_trusted_proxies="127.0.0.1")
    page = site.client.get("/docs", headers={"X-Forwarded-Prefix": "/mr"}).text
    assert 'data-description="/mr/openapi.json"' in page
    assert re.findall(r'(?:src|href)="(?!/mr/)', page) == []


def test_files_are_kept_as_long_as_they_are_the_same(site: Site) -> None:
    page = site.client.get("/docs").text
    [script] = re.findall(r'src="(/docs/static/\w+/swagger-ui-bundle\.js)"', page)
    answer = site.client.get(script)
    assert (answer.mimetype, answer.headers["Cache-Control"]) == ("text/javascript", FOREVER)
    other = site.client.get("/docs/static/0/swagger-ui-bundle.js")
    assert (other.data, other.headers["Cache-Control"]) == (answer.data, AGAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.html", "..", "%2e%2e%2fviews.py", "docs.html", "VERSION"])
def test_file_that_is_not_served_is_404(site: Site, name: str) -> None:
    assert site.client.get(f"/docs/static/0/{name}").status_code == 404


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_link_of_another_site_opens_the_page(site: Site, path: str) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    link |= {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-User": "?1"}
    assert site.client.get(path, headers=link).status_code == 200
    assert site.client.get("/openapi.json", headers=link).status_code == 403


def test_root_names_the_description(site: Site) -> None:
    found = site.client.get("/").get_json()
    assert found["openapi"] == "http://localhost/openapi.json"
    assert found["docs"] == "http://localhost/docs"


def test_head_and_options_tell_what_get_does(site: Site) -> None:
    for path in ("/docs", "/openapi.json"):
        got, head = site.client.get(path), site.client.head(path)
        assert head.data == b""
        assert head.headers["Content-Length"] == str(len(got.data))
        options = site.client.options(path)
        assert set(options.headers["Allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
