"""Signing in to the console, as tests do it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.unit.web.applications import CHEAP, HASHES, Site

BROWSER: Final = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
JSON: Final = {"Accept": "application/json"}
PASSWORD: Final = "secret"


class Browser:
    """A browser's view of the console: it sends back the cookie that it was given."""

    def __init__(self, site: Site, client: FlaskClient | None = None) -> None:
        self.client = client or site.app.test_client(use_cookies=False)
        self.cookie = ""

    def sign_in(
        self, user: str = "anna", password: str = PASSWORD, next_page: str = "", **more: Any
    ) -> TestResponse:
        form = {"user": user, "password": password, "next": next_page}
        answer = self.open("/console/signin", "POST", data=form, **more)
        if given := answer.headers.get("Set-Cookie"):
            self.cookie = given.partition(";")[0]
        return answer

    def open(self, path: str, method: str = "GET", **more: Any) -> TestResponse:
        headers = BROWSER | ({"Cookie": self.cookie} if self.cookie else {})
        headers |= more.pop("headers", {})
        return self.client.open(path, method=method, headers=headers, **more)

    def token(self, path: str = "/console/topics") -> str:
        found = re.search(r'name="csrf_token" value="([\w-]+)"', self.open(path).text)
        assert found is not None
        return found[1]

    def knows(self, user: str) -> bool:
        """Return whether pages show this user as signed in."""
        return f"Signed in as <b>{user}</b>" in self.open("/console/topics").text


def users_file(folder: Path, **passwords: str) -> Path:
    """Write a users file; without passwords it has anna and bert, whose password is PASSWORD."""
    hashes = {name: CHEAP.hash(password) for name, password in passwords.items()}
    hashes = hashes or dict.fromkeys(("anna", "bert"), HASHES["argon2"])
    file = folder / "users"
    file.write_text("".join(f"{name}:{hashed}\n" for name, hashed in hashes.items()))
    return file
