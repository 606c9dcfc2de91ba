"""deploy/docker/compose.yaml: it follows the specification, is pinned, and names what exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.cli import broker_child, serve
from router.settings import duration, load
from tests.deploy.nginx import Nginx
from tests.deploy.tools import DEPLOY, run
from tests.ports import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

FILE = DEPLOY / "docker" / "compose.yaml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]
    return found


def validate(file: Path) -> tuple[int, str]:
    """Compare a file with the schema of the compose specification."""
    schema = ["--builtin-schema", "vendor.compose-spec"]
    done = run(Path(sys.executable).parent / "check-jsonschema", *schema, file)
    return done.returncode, done.stdout + done.stderr


def test_file_follows_the_compose_specification() -> None:
    status, said = validate(FILE)
    assert status == 0, said


def test_validation_refuses_a_file_with_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("depends_on:", "depend_on:"))
    status, said = validate(wrong)
    assert status != 0
    assert "depend_on" in said


def test_there_are_two_nodes_and_what_they_stand_on(services: dict[str, Any]) -> None:
    assert set(services) == {"router1", "router2", "nginx", "kafka", "zookeeper"}


def test_images_are_pinned(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*", service["image"]), name


def test_every_service_says_whether_it_is_well(services: dict[str, Any]) -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    assert "HEALTHCHECK" in dockerfile
    built = {name for name, service in services.items() if "build" in service}
    assert built == {"router1", "router2"}
    assert all("healthcheck" in services[name] for name in set(services) - built)


def test_dependencies_exist_and_are_waited_for(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert name in services
            assert how == {"condition": "service_healthy"}


def test_files_that_are_mounted_exist(services: dict[str, Any]) -> None:
    mounts = [v for s in services.values() for v in s["volumes"] if v.startswith(".")]
    assert len(mounts) == 3
    for mount in mounts:
        assert (FILE.parent / mount.partition(":")[0]).is_file()


def test_nodes_have_the_time_to_stop(services: dict[str, Any]) -> None:
    front = load(None, {}).seconds("server.graceful_timeout") + serve.MARGIN_SECONDS
    for name in ("router1", "router2"):
        assert (
            duration(services[name]["stop_grace_period"]) >= front + broker_child.STOP_SECONDS + 5
        )


def test_nginx_accepts_its_list_of_nodes(tmp_path: Path, services: dict[str, Any]) -> None:
    nginx = Nginx(tmp_path, free_port(), [3904])
    text = (DEPLOY / "docker" / "router-nodes.conf").read_text(encoding="utf-8")
    names = re.findall(r"^server (\w+):3904 ", text, re.MULTILINE)
    assert names == ["router1", "router2"]
    assert set(names) <= set(services)
    (tmp_path / "router-nodes.conf").write_text(re.sub(r"router\d:", "127.0.0.1:", text))
    checked = run(*nginx.command("-t", "-q"))
    assert (checked.returncode, checked.stderr) == (0, "")
