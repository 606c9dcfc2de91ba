"""Signing requests as clients of the original do."""

from __future__ import annotations

from datetime import UTC, datetime

from flask.testing import FlaskClient

from router.web.access.signatures import sign


def signature(key: str, secret: str, at: datetime | None = None) -> dict[str, str]:
    """Return the headers that sign a request."""
    date = (at or datetime.now(UTC)).strftime("%a, %d %b %Y %H:%M:%S UTC")
    return {"X-CambriaAuth": f"{key}:{sign(secret, date).decode()}", "X-CambriaDate": date}


class Signer:
    """An API key of a site, and what signs with it."""

    def __init__(self, client: FlaskClient, **headers: str) -> None:
        body = {"email": "a@example.org", "description": "d"}
        made = client.post("/apiKeys/create", json=body, headers=headers).get_json()
        self.key: str = made["key"]
        self.secret: str = made["secret"]

    def headers(self) -> dict[str, str]:
        """Return the headers that sign a request now."""
        return signature(self.key, self.secret)
