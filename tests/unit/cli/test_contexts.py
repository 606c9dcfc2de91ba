"""`router context`, and its file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import click
import pytest

from router.cli import contexts, options, status
from router.errors import SettingError
from tests.unit.cli.test_commands import run

ADD = ("context", "add", "prod", "--server", "https://router.example.org:3905")


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts, in a folder of the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("ROUTER_CONTEXT", "ROUTER_PASSWORD", "ROUTER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "dragoman" / "contexts.json"


def test_the_file_is_private_from_its_first_byte(file: Path) -> None:
    os.umask(os.umask(0))  # what the umask is must not matter
    assert run(*ADD).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [one.name for one in file.parent.iterdir() if one.name.endswith("json")] == [file.name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(file: Path, mode: int) -> None:
    run(*ADD)
    file.chmod(mode)
    for line in (("context", "list"), ("topics", "list"), ("context", "use", "prod")):
        result = run(*line)
        assert result.exit_code == status.BAD_SETTING
        assert f"chmod 600 {file}" in result.output


def test_the_first_context_is_in_use_and_use_changes_it(file: Path) -> None:
    run(*ADD)
    run("context", "add", "test", "--server", "http://127.0.0.1:3904")
    assert contexts.load(file).current == "prod"
    assert run("context", "use", "test").exit_code == 0
    assert contexts.load(file).current == "test"
    assert run("context", "remove", "test").exit_code == 0
    assert (contexts.load(file).current, list(contexts.load(file).known)) == ("local", ["prod"])


def test_secrets_are_kept_and_never_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_PASSWORD", "s3cret")
    added = run(*ADD, "--user", "anna")
    assert contexts.load(file).get("prod").credentials() == ("Basic", "s3cret")
    shown = [run("context", *line) for line in (("list",), ("list", "--json"), ("show", "prod"))]
    assert all("s3cret" not in result.output for result in [added, *shown])
    assert "***" in shown[2].output
    assert "s3cret" not in repr(contexts.load(file))


def test_files_of_secrets_are_read_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    found = contexts.Context("http://x", token_file=str(token))
    assert found.credentials() == ("Bearer", "one")
    token.write_text("two\n")
    assert found.credentials() == ("Bearer", "two")


def test_without_a_terminal_there_is_no_prompt() -> None:
    result = run(*ADD, "--user", "anna")
    assert result.exit_code == status.BAD_SETTING
    assert "set ROUTER_PASSWORD" in result.output


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("router.example.org", "expected a URL"),
        ("ftp://x", "expected a URL"),
        ("http://x:99999", "expected a URL"),
        ("https://anna:secret@x", "--user, which asks for it"),
        ("https://x/?a=b", "nothing else"),
        ("https://x/\u00e9", "nothing else"),
    ],
)
def test_what_is_no_server_is_refused(url: str, sentence: str) -> None:
    result = run("context", "add", "prod", "--server", url)
    assert result.exit_code == status.BAD_SETTING
    assert sentence in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize("name", ["local", "", "-x", "a b", "x" * 65])
def test_what_is_no_name_is_refused(name: str) -> None:
    result = run("context", "add", "--server", "http://x", "--", name)
    assert result.exit_code == status.BAD_SETTING


def test_a_name_that_is_taken_is_replaced_when_asked() -> None:
    run(*ADD)
    assert run(*ADD).exit_code == status.FAILED
    assert run(*ADD, "--replace").exit_code == 0


def test_credentials_over_http_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTER_PASSWORD", "s3cret")
    far = run("context", "add", "far", "--server", "http://router:3904", "--user", "anna")
    assert "can read the credentials" in far.output
    near = run("context", "add", "near", "--server", "http://127.0.0.1:3904", "--user", "anna")
    assert "can read" not in near.output


def test_a_command_waits_for_another_that_changes_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "LOCK_SECONDS", 0.0)
    with (
        contexts.changing(file),
        pytest.raises(SettingError, match="another command"),
        contexts.changing(file),
    ):
        pass


def test_a_file_that_is_none_of_contexts_is_a_sentence(file: Path) -> None:
    run(*ADD)
    for text in ("{", "[]", '{"contexts": {"a": {"sever": "x"}}}', '{"contexts": {"a": 1}}'):
        file.write_text(text)
        with pytest.raises(SettingError, match="no file of contexts"):
            contexts.load(file)


def test_the_data_folder_is_meant_unless_a_router_is_named(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    none: dict[str, str | None] = {"context": None, "server": None, "data__dir": None}
    assert options.context_of(None, none)[0] is None
    run(*ADD)
    run("context", "add", "test", "--server", "http://127.0.0.1:3904")
    found = contexts.load(file)
    assert options.context_of(None, none)[0] == found.get("prod")
    assert options.context_of(None, none | {"data__dir": "data"})[0] is None
    assert options.context_of(None, none | {"context": "local"})[0] is None
    monkeypatch.setenv("ROUTER_CONTEXT", "test")
    assert options.context_of(None, none)[0] == found.get("test")
    assert options.context_of(None, none | {"context": "prod"})[0] == found.get("prod")
    server = options.context_of(None, none | {"server": "http://other:1"})[0]
    assert server == contexts.Context("http://other:1")


@pytest.mark.parametrize(
    "given",
    [
        {"server": "http://x", "context": "prod"},
        {"server": "http://x", "data__dir": "data"},
        {"context": "prod", "backend__url": "memory"},
        {"user": "anna"},
        {"server": "http://x", "user": "anna", "token_file": "t"},
    ],
)
def test_options_that_contradict_are_a_usage_error(given: dict[str, str | None]) -> None:
    with pytest.raises(click.UsageError):
        options.context_of(None, given)


def test_list_as_json_has_all_but_secrets() -> None:
    run(*ADD)
    assert json.loads(run("context", "list", "--json").output) == {
        "current": "prod",
        "contexts": {
            "prod": {"server": "https://router.example.org:3905", "namespace": "public/default"}
        },
    }
