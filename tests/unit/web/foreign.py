"""What browsers say of requests of other origins, and which of them may open a page."""

from __future__ import annotations

from typing import Final

from flask.testing import FlaskClient

from tests.unit.web import routes

PAGE: Final = "https://pages.example"
FOLLOWED: Final = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-User": "?1",
}
"""A link that a user followed by hand."""
HEADERS: Final = {
    "a form or fetch": {"Origin": PAGE},
    "a form of a sandboxed page": {"Origin": "null"},
    "a fetch of another port": {"Origin": "http://localhost:8080"},
    "a form that a user sent": FOLLOWED | {"Origin": PAGE},
    "an image": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "an image of another port": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    "a frame": FOLLOWED | {"Sec-Fetch-Dest": "iframe"},
    "a script that goes there": FOLLOWED | {"Sec-Fetch-User": "?0"},
    "a redirect": {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
    "a page that lies of its origin": {
        "Origin": "http://localhost",
        "Sec-Fetch-Site": "cross-site",
    },
}
TLS_HEADERS: Final = HEADERS | {
    "a page of this host without TLS": {"Origin": "http://localhost"},
}


def is_page(path: str) -> bool:
    """Return whether links of other sites may open a path."""
    return path in {"/", "/console", "/docs"} or path.startswith(("/console/", "/docs/"))


def refused(client: FlaskClient, headers: dict[str, str], base_url: str) -> int:
    """Demand that each route refuses what a foreign page sends; return how many there are."""
    count = 0
    for method, path in routes.requests(client.application):
        answer = client.open(
            path, method=method, headers=headers, base_url=base_url, data=b"{}" * (method != "GET")
        )
        assert answer.status_code == 403, (method, path, answer.status_code)
        assert answer.headers.get("Access-Control-Allow-Origin") is None
        count += 1
    return count


def followed(client: FlaskClient) -> int:
    """Demand that each route but a page refuses a followed link; return how many are refused."""
    count = 0
    for method, path in routes.requests(client.application):
        if method in {"GET", "HEAD"} and is_page(path):
            continue
        answer = client.open(path, method=method, headers=FOLLOWED)
        assert answer.status_code == 403, (method, path, answer.status_code)
        count += 1
    return count
