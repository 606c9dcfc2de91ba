"""`router user`: an htpasswd file that is never half written and never readable by others."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from passlib.hash import argon2

from router.cli import main
from router.cli.user import read, write


def run(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(main, ["user", *arguments], input=given)


def add(file: Path, name: str, password: str) -> Result:
    return run("add", name, "--password-stdin", "--file", str(file), given=f"{password}\n")


def test_add_stores_an_argon2id_hash(tmp_path: Path) -> None:
    file = tmp_path / "users"
    assert add(file, "anna", "secret").exit_code == 0
    known = read(file)["anna"]
    assert known.startswith("$argon2id$")
    assert argon2.verify("secret", known)
    assert not argon2.verify("other", known)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_add_changes_the_password_of_a_known_user(tmp_path: Path) -> None:
    file = tmp_path / "users"
    add(file, "anna", "old")
    add(file, "bert", "his")
    before = read(file)
    assert "Changed anna" in add(file, "anna", "new").output
    after = read(file)
    assert list(after) == ["anna", "bert"]
    assert after["bert"] == before["bert"]
    assert argon2.verify("new", after["anna"])


def test_add_asks_twice_for_the_password_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "users"
    result = run("add", "anna", "--file", str(file), given="secret\nsecret\n")
    assert result.exit_code == 0
    assert "secret" not in result.output
    assert argon2.verify("secret", read(file)["anna"])


def test_add_takes_the_password_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users"
    monkeypatch.setenv("ROUTER_PASSWORD", "secret")
    assert run("add", "anna", "--file", str(file)).exit_code == 0
    assert argon2.verify("secret", read(file)["anna"])


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "#comment"])
def test_add_refuses_the_name(tmp_path: Path, name: str) -> None:
    result = add(tmp_path / "users", name, "secret")
    assert result.exit_code == 1
    assert not (tmp_path / "users").exists()


def test_add_refuses_an_empty_password(tmp_path: Path) -> None:
    result = add(tmp_path / "users", "anna", "")
    assert result.exit_code == 1
    assert not (tmp_path / "users").exists()


def test_remove_takes_one_user_away(tmp_path: Path) -> None:
    file = tmp_path / "users"
    write(file, {"anna": "x", "bert": "y"})
    assert run("remove", "anna", "--file", str(file)).exit_code == 0
    assert read(file) == {"bert": "y"}


def test_remove_fails_when_there_is_no_such_user(tmp_path: Path) -> None:
    result = run("remove", "anna", "--file", str(tmp_path / "users"))
    assert result.exit_code == 1
    assert "has no user anna" in result.output


def test_list_prints_names_and_no_hashes(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("# staff\nbert:$apr1$x\nanna:$2b$y\n")
    assert run("list", "--file", str(file)).output == "anna\nbert\n"


def test_list_asks_for_a_file_when_none_is_set() -> None:
    result = run("list")
    assert result.exit_code == 78
    assert "auth.users" in result.output


def test_write_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    with pytest.raises(OSError, match="directory"):
        write(tmp_path / "users", {"anna": "x"})
    assert [path.name for path in tmp_path.iterdir()] == ["users"]
