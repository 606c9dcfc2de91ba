"""deploy/: every setting, variable and flag that a file there names exists, with a good value."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from router.cli import main
from router.settings import SETTINGS, Settings, load, variable
from tests.deploy.tools import DEPLOY, ROOT, run

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())
VARIABLES = {variable(setting.name) for setting in SETTINGS} | {"ROUTER_CONFIG"}


def configurations() -> dict[str, str]:
    """Return the configuration files in deploy, by their place; those in ConfigMaps too."""
    found = {str(path): path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*.cfg")}
    for path in (DEPLOY / "kubernetes").glob("*.yaml"):
        for item in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if item["kind"] == "ConfigMap":
                found[str(path)] = item["data"]["router.cfg"]
    return found


CONFIGURATIONS = configurations()


def environments() -> dict[str, dict[str, str]]:
    """Return the environments that compose and Kubernetes give to the router."""
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {
        name: service["environment"]
        for name, service in compose["services"].items()
        if name.startswith("router")
    }
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_variables_exist(file: Path) -> None:
    named = set(re.findall(r"\bROUTER_[A-Z0-9_]+\b", file.read_text(encoding="utf-8")))
    assert named - VARIABLES == set()


def test_files_of_settings_are_found() -> None:
    assert len(CONFIGURATIONS) == 3


@pytest.mark.parametrize("name", CONFIGURATIONS, ids=lambda name: Path(name).name)
def test_configurations_are_understood(name: str, tmp_path: Path) -> None:
    file = tmp_path / "router.cfg"
    file.write_text(CONFIGURATIONS[name])
    checked: Settings = load(file, {})
    assert any(value.origin == str(file) for value in checked.values.values())


@pytest.mark.parametrize("name", CONFIGURATIONS, ids=lambda name: Path(name).name)
def test_settings_that_are_commented_out_are_understood_too(name: str, tmp_path: Path) -> None:
    file = tmp_path / "router.cfg"
    text = re.sub(r"^(\s*)#(\w+ = )", r"\1\2", CONFIGURATIONS[name], flags=re.MULTILINE)
    assert text != CONFIGURATIONS[name]
    file.write_text(text)
    load(file, {})


def test_environments_of_containers_are_understood() -> None:
    found = environments()
    assert set(found) == {"router1", "router2"}
    for environ in found.values():
        settings = load(None, environ)
        assert settings.text("backend.url").startswith("kafka://")


def test_router_check_accepts_what_a_node_in_compose_gets(tmp_path: Path) -> None:
    environ = environments()["router1"]
    flags = [f"{name}={text}" for name, text in environ.items()]
    router = Path(sys.executable).parent / "router"
    done = run("env", "-C", tmp_path, *flags, router, "check", "--data", tmp_path / "data")
    # Kafka and ZooKeeper are not here to be reached; a wrong setting would be EX_CONFIG.
    assert done.returncode == os.EX_UNAVAILABLE, done.stdout + done.stderr


def test_deployed_files_name_commands_and_flags_that_exist() -> None:
    lines = [
        line.partition("=/opt/dragoman/bin/router ")[2]
        for file in (DEPLOY / "systemd").glob("*.service")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("ExecStart=")
    ]
    assert len(lines) == 3
    for line in lines:
        name, *words = shlex.split(line)
        command = main.get_command(click.Context(main), name)
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_files_of_deploy_are_told_about_in_the_documentation() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    folders = {f"deploy/{path.name}" for path in DEPLOY.iterdir() if path.is_dir()}
    assert [folder for folder in sorted(folders) if f"`{folder}`" not in page] == []
