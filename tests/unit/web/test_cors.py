"""Pages of other origins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.web.applications import Site
from tests.unit.web.signing import signature

Sites = Callable[..., Site]
PAGE = "https://pages.example"


@pytest.mark.parametrize("listed", [PAGE, f"https://other.example, {PAGE}/", "*"])
def test_page_on_the_list_may_publish_and_read_the_answer(sites: Sites, listed: str) -> None:
    answer = sites(cors_origins=listed).post("/events/t", "a", headers={"Origin": PAGE})
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "transactionId" in answer.headers["Access-Control-Expose-Headers"]
    assert "Origin" in answer.headers["Vary"]


def test_page_on_the_list_may_ask_first(sites: Sites) -> None:
    sent = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
    }
    answer = sites(cors_origins=PAGE).client.options("/events/t", headers=sent)
    assert answer.status_code == 200
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    for name in ("Authorization", "Content-Type", "Idempotency-Key"):
        assert name in answer.headers["Access-Control-Allow-Headers"]


def test_page_on_the_list_may_sign(sites: Sites) -> None:
    sent = {"Origin": PAGE, "Access-Control-Request-Method": "PATCH"}
    answer = sites(cors_origins=PAGE).client.options("/apiKeys/k", headers=sent)
    assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
    for name in signature("key", "secret") | {"X-Nonce": "n"}:
        assert name in answer.headers["Access-Control-Allow-Headers"]


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "null"])
@pytest.mark.parametrize("host", ["localhost", ""])
def test_origin_that_is_no_origin_is_foreign(site: Site, origin: str, host: str) -> None:
    answer = site.client.get(
        "/topics", headers={"Origin": origin}, environ_overrides={"HTTP_HOST": host}
    )
    assert answer.status_code == 403


def test_page_on_the_list_may_read_refusals(sites: Sites) -> None:
    answer = sites(cors_origins=PAGE).client.get("/nowhere", headers={"Origin": PAGE})
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE


@pytest.mark.slow
@pytest.mark.parametrize("listed", ["", "https://other.example"])
@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": PAGE},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        # An image of a page on another port of this machine, a frame, a script that goes there.
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "iframe",
            "Sec-Fetch-User": "?1",
        },
        {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        },
    ],
)
def test_page_of_another_origin_may_neither_publish_nor_poll(
    sites: Sites, listed: str, sent: dict[str, str]
) -> None:
    site = sites(cors_origins=listed)
    site.post("/events/t", "a")
    for answer in (site.post("/events/t", "b", headers=sent), site.poll(**sent)):
        assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (403, 4002)
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert site.poll().get_json() == ["a"]


def test_page_of_another_origin_gets_no_leave_when_it_asks(sites: Sites) -> None:
    sent = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    answer = sites(cors_origins="https://other.example").client.options("/events/t", headers=sent)
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [{}, {"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"},
     {"Sec-Fetch-Site": "none"}],
)  # fmt: skip
def test_our_own_pages_and_other_clients_are_not_concerned(
    site: Site, sent: dict[str, str]
) -> None:
    answer = site.post("/events/t", "a", headers=sent)
    assert answer.status_code == 200
    assert "Vary" not in answer.headers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 302),
        ("GET", "/console", 200),
        ("GET", "/console/", 200),
        ("GET", "/console/topics/t?tab=groups", 200),
        ("HEAD", "/console/about", 200),
        ("POST", "/console/topics", 403),
        ("GET", "/events/t/g/c?timeout=0&from=earliest", 403),
        ("GET", "/topics", 403),
        ("GET", "/consoles", 403),
        ("GET", "/console/../topics", 404),
        ("POST", "/events/t", 403),
    ],
)
def test_links_of_other_sites_open_pages_and_nothing_else(
    site: Site, method: str, path: str, status: int
) -> None:
    site.post("/events/t", "a")
    followed = {
        "Accept": "text/html",
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
        "Sec-Fetch-User": "?1",
    }
    answer = site.client.open(path, method=method, headers=followed, data=b"")
    assert answer.status_code == status
    assert site.poll().get_json() == ["a"]


@pytest.mark.parametrize(
    ("host", "forwarded", "origin", "status"),
    [
        # The proxy puts its own name for the router into Host.
        ("router:3904", "bus.example", "https://bus.example", 200),
        # The proxy leaves out the port.
        ("bus.example:8443", "bus.example", "https://bus.example:8443", 200),
        ("router:3904", "bus.example", "http://bus.example", 403),
        ("router:3904", "bus.example", "https://pages.example", 403),
        ("router:3904", "bus.example", "https://bus.example:8443", 403),
    ],
)
def test_own_pages_are_known_behind_a_trusted_proxy(
    sites: Sites, host: str, forwarded: str, origin: str, status: int
) -> None:
    sent = {"X-Forwarded-Host": forwarded, "X-Forwarded-Proto": "https", "Origin": origin}
    behind = sites(server_trusted_proxies="127.0.0.1", server_hosts=host.partition(":")[0])
    answer = behind.post("/events/t", "a", headers=sent, environ_overrides={"HTTP_HOST": host})
    assert answer.status_code == status


def test_forwarded_host_of_a_client_is_no_origin_of_ours(site: Site) -> None:
    sent = {"X-Forwarded-Host": "pages.example", "Origin": PAGE}
    assert site.post("/events/t", "a", headers=sent).status_code == 403
