"""What commands share: settings travel whole to other processes, and secrets are not printed."""

from __future__ import annotations

import pytest

from router.settings import BY_NAME, SECRETS, environment, load, shown


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_shown_hides_secrets(name: str) -> None:
    assert name in BY_NAME
    assert shown(name, "hunter2") == "***"
    assert shown(name, "") == ""


def test_secrets_are_all_settings_that_sound_like_one() -> None:
    words = ("password", "secret", "digest", "token")
    assert {name for name in BY_NAME if name.endswith(words)} == SECRETS


def test_shown_leaves_other_settings_as_they_are() -> None:
    assert shown("server.host", "127.0.0.1") == "127.0.0.1"


def test_environment_carries_secrets_and_flags_to_other_processes() -> None:
    flags = {"kafka.password": "hunter2", "server.tls_port": "3905", "server.cert": "c.pem"}
    variables = environment(load(None, {}, flags))
    assert variables["ROUTER_KAFKA_PASSWORD"] == "hunter2"
    loaded = load(None, {name: v for name, v in variables.items() if name != "ROUTER_CONFIG"})
    assert {name: loaded.values[name].text for name in flags} == flags
