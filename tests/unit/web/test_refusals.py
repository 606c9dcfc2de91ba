"""Refused clients in every dialect of HTTP: 401 asks for credentials, 403 names the rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from werkzeug.test import TestResponse

from tests.unit.web.applications import HASHES, Site, header

Sites = Callable[..., Site]
REQUESTS = [
    ("POST", "/events/t"),
    ("POST", "/events/transaction/t"),
    ("GET", "/events/t/g/c?timeout=0"),
    ("GET", "/events/t?stream"),
    ("PUT", "/topics/t/producers/k"),
    ("DELETE", "/topics/t/producers/k"),
    ("PUT", "/topics/t/consumers/k"),
    ("DELETE", "/topics/t/consumers/k"),
    ("DELETE", "/topics/t"),
    ("POST", "/topics/t/groups/g/reset?to=latest"),
    ("DELETE", "/topics/t/groups/g"),
    ("POST", "/topics/public/default/t"),
    ("GET", "/topics/public/default/t/partitions/0/messages"),
    ("POST", "/topics/public/default/t/subscription/g"),
    ("POST", "/jetstream/publish/t"),
    ("GET", "/console/topics/t/export?as=ndjson"),
]
JSON = {"Content-Type": "application/json", "Accept": "application/json"}


@pytest.fixture
def owned(sites: Sites, tmp_path: Path) -> Callable[..., Site]:
    """Make a router with the topic t of ann, on which the file of permissions lets bob do all."""
    (tmp_path / "users").write_text("".join(f"{n}:{HASHES['argon2']}\n" for n in ("ann", "bob")))
    (tmp_path / "rights").write_text(
        "ann t manage publish subscribe\nbob t manage publish subscribe\n"
    )

    def make(**more: str) -> Site:
        files = {"users": "users", "permissions": "rights"}
        settings = {f"auth_{name}": str(tmp_path / file) for name, file in files.items()}
        site = sites(**settings, **more)
        made = site.client.post("/topics/create", json={"topicName": "t"}, headers=as_("ann"))
        assert made.status_code == 200, made.text
        return site

    return make


def as_(user: str, password: str = "secret") -> dict[str, str]:
    return {"Authorization": header(user, password)}


def ask(site: Site, method: str, path: str, **headers: str) -> TestResponse:
    return site.client.open(path, method=method, data="{}", headers=JSON | headers)


@pytest.mark.parametrize("status", ["403", "401"])
@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_a_user_whom_the_owner_does_not_admit_learns_the_rule(
    owned: Callable[..., Site], method: str, path: str, status: str
) -> None:
    answer = ask(owned(auth_forbidden_status=status), method, path, **as_("bob"))
    assert answer.status_code == int(status), answer.text
    assert "the topic has an owner, and bob is neither the owner nor " in unquote(answer.text)
    assert ("WWW-Authenticate" in answer.headers) == (status == "401")


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_a_client_without_credentials_is_asked_for_them(
    owned: Callable[..., Site], method: str, path: str
) -> None:
    site = owned()
    for sent in ({}, as_("bob", "wrong")):
        answer = ask(site, method, path, **sent)
        assert answer.status_code == 401, answer.text
        assert answer.headers.getlist("WWW-Authenticate")


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_a_page_of_another_origin_is_not_asked_for_credentials(
    owned: Callable[..., Site], method: str, path: str
) -> None:
    site = owned(auth_forbidden_status="401")
    answer = ask(site, method, path, **as_("ann"), Origin="http://elsewhere.example")
    assert answer.status_code == 403, answer.text
    assert "WWW-Authenticate" not in answer.headers


@pytest.mark.parametrize(
    ("files", "schemes"),
    [
        ({"auth_users"}, ["Basic"]),
        ({"auth_token_secret_file"}, ["Bearer"]),
        ({"auth_users", "auth_token_secret_file"}, ["Basic", "Bearer"]),
    ],
)
def test_challenges_are_the_credentials_that_are_taken(
    sites: Sites, tmp_path: Path, files: set[str], schemes: list[str]
) -> None:
    (tmp_path / "auth_users").write_text(f"ann:{HASHES['argon2']}\n")
    (tmp_path / "auth_token_secret_file").write_bytes(b"k" * 64)
    site = sites(**{name: str(tmp_path / name) for name in files})
    for method, path in (("GET", "/topics"), ("GET", "/jetstream/api/INFO"), ("GET", "/console/")):
        answer = ask(site, method, path)
        assert answer.status_code == 401, (path, answer.text)
        found = answer.headers.getlist("WWW-Authenticate")
        assert [one.partition(" ")[0] for one in found] == schemes
