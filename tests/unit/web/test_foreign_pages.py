"""Pages of other origins change and consume nothing, by any route of any dialect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from werkzeug.test import create_environ

from router.web.origins import Cors
from tests.unit.web import foreign, routes
from tests.unit.web.applications import Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site({})
    site.post("/events/t", "a")
    yield site
    site.close()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_changed(site: Site) -> Iterator[None]:
    yield
    assert site.client.get("/topics").get_json() == {"topics": ["t"]}
    assert site.client.get("/apiKeys").get_json() == {"apiKeys": []}
    assert site.client.get("/topics/t/groups").get_json()["groups"] == []
    assert site.poll().get_json() == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("case", foreign.HEADERS)
def test_every_route_refuses_pages_of_other_origins(site: Site, case: str) -> None:
    count = foreign.refused(site.client, foreign.HEADERS[case], "http://localhost")
    assert count == len(list(routes.requests(site.app))) > 120


@pytest.mark.slow
@pytest.mark.parametrize("case", foreign.TLS_HEADERS)
def test_every_route_refuses_pages_of_other_origins_under_tls(site: Site, case: str) -> None:
    foreign.refused(site.client, foreign.TLS_HEADERS[case], "https://localhost")


def test_links_of_other_sites_open_pages_alone(site: Site) -> None:
    assert foreign.followed(site.client) > 100


def test_pages_that_links_open_change_nothing(site: Site) -> None:
    for method, path in routes.requests(site.app):
        if method == "GET" and foreign.is_page(path):
            answer = site.client.open(path, headers=foreign.FOLLOWED)
            assert answer.status_code in {200, 302, 400, 404}, path
            answer.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost"},
        {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
    ids=str,
)
def test_every_route_takes_own_pages_and_clients_that_are_no_browsers(
    site: Site, headers: dict[str, str]
) -> None:
    cors: Cors = site.app._cors  # type: ignore[attr-defined]
    for method, path in routes.requests(site.app):
        cors.check(create_environ(path, "http://localhost", method=method, headers=headers))


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/topics"), ("GET", "/console/../topics"), ("TRACE", "/topics")]
)
def test_what_is_no_route_is_refused_as_well(site: Site, method: str, path: str) -> None:
    answer = site.client.open(path, method=method, headers={"Origin": foreign.PAGE})
    assert answer.status_code in {403, 404, 405}
