"""Putting the front together."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from router.app import create_app
from router.backends.memory import MemoryBackend, MemoryNode
from router.errors import SettingError
from router.settings import load


def test_application_opens_the_backend_that_settings_name() -> None:
    app = create_app(load(None, {"ROUTER_BACKEND_URL": "memory"}))
    assert app.test_client().post("/events/t", data="x").status_code == 200
    app.extensions["router.close"]()
    assert app.test_client().get("/ready").status_code == 503


def test_application_leaves_what_it_was_given_open() -> None:
    backend, node = MemoryBackend(), MemoryNode()
    app = create_app(load(None, {}), backend, node)
    app.extensions["router.close"]()
    backend.ready(1)
    node.metrics(1)


def test_application_with_an_unknown_backend_stops_the_start() -> None:
    settings = load(None, {"ROUTER_BACKEND_URL": "carrier-pigeon://here"})
    with pytest.raises(SettingError, match="known are embedded, kafka, memory, pulsar"):
        create_app(settings, node=MemoryNode())


def test_application_of_a_wsgi_server_reads_file_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTER_CONFIG", "")
    monkeypatch.setenv("ROUTER_BACKEND_URL", "memory")
    monkeypatch.setenv("ROUTER_SERVER_HELP_URL", "https://help.example")
    app = runpy.run_path("wsgi.py")["app"]
    assert app.test_client().get("/nowhere").get_json()["helpURL"] == "https://help.example"
    app.extensions["router.close"]()


def test_help_url_names_the_code_of_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_CONFIG", "")
    monkeypatch.setenv("ROUTER_BACKEND_URL", "memory")
    monkeypatch.setenv("ROUTER_SERVER_HELP_URL", "https://help.example/errors.html#{code}")
    app = runpy.run_path("wsgi.py")["app"]
    help_url = app.test_client().get("/nowhere").get_json()["helpURL"]
    assert help_url == "https://help.example/errors.html#path-not-found"
    app.extensions["router.close"]()


def test_application_waits_with_its_broker_until_it_is_needed(tmp_path: Path) -> None:
    settings = load(
        None,
        {"ROUTER_DATA_DIR": str(tmp_path / "data"), "ROUTER_BROKER_SPAWN": "false",
         "ROUTER_BACKEND_TIMEOUT": "100ms"},
    )  # fmt: skip
    app = create_app(settings)
    assert app.test_client().get("/health").status_code == 200
    app.extensions["router.close"]()


def test_application_words_what_the_server_cannot_read() -> None:
    app = create_app(load(None, {"ROUTER_BACKEND_URL": "memory"}))
    body, transaction = app.extensions["router.unread"](431, "too long")
    assert b'"status":431' in body
    assert transaction.encode() in body
    app.extensions["router.close"]()
