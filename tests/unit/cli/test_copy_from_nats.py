"""A NATS server as an end of a copy: which URLs name one, and on which side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.backends.nats.connection import NatsUrl
from router.backends.nats.source import checked
from router.cli import status
from router.errors import NotAllowedError, SettingError, TopicNotFoundError
from tests.unit.cli.test_commands import run


@pytest.mark.parametrize(
    ("url", "address", "credentials", "secure"),
    [
        ("nats://h", ("h", 4222), {"auth_token": ""}, False),
        ("nats://h:1/", ("h", 1), {"auth_token": ""}, False),
        ("nats://token@h:1", ("h", 1), {"auth_token": "token"}, False),
        ("nats://a:b%40c@h", ("h", 4222), {"user": "a", "pass": "b@c"}, False),
        ("tls://h", ("h", 4222), {"auth_token": ""}, True),
    ],
)
def test_a_url_names_a_server_and_a_user(
    url: str, address: Any, credentials: Any, secure: bool
) -> None:
    found = NatsUrl(url)
    assert (found.address, found.credentials, found.secure) == (address, credentials, secure)


@pytest.mark.parametrize("url", ["nats://", "nats://h:x", "nats://h/path", "nats://h:99999"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(SettingError):
        NatsUrl(url)


def test_nothing_is_copied_to_a_nats_server(tmp_path: Path) -> None:
    done = run("copy", str(tmp_path / "data"), "nats://127.0.0.1:1")
    assert done.exit_code == status.FAILED
    assert "can only be FROM" in done.output


def test_errors_of_the_api_are_those_of_topics() -> None:
    assert checked(b'{"a":1}') == {"a": 1}
    with pytest.raises(TopicNotFoundError):
        checked(b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}')
    with pytest.raises(NotAllowedError, match="no rights"):
        checked(b'{"error":{"code":403,"description":"no rights"}}')
    with pytest.raises(NotAllowedError, match="no JSON"):
        checked(b"-ERR")
