"""deploy/docker/single-node.yaml, and the line of `docker run` that does the same."""

from __future__ import annotations

import re
import shlex
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.process.build import VERSION
from router.settings import duration, load
from tests.deploy.tools import DEPLOY, ROOT, run
from tests.system.stack import Stack

FILE = DEPLOY / "docker" / "single-node.yaml"
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
SERVICE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["services"]["router"]


def lines() -> list[list[str]]:
    """Return the words of each `docker run` that is described: in the file, and in the docs."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").replace("\\\n", " ")
    text = FILE.read_text(encoding="utf-8") + page
    return [shlex.split(f"docker run {rest}") for rest in re.findall(r"docker run (--d.*)", text)]


def values(words: list[str], option: str) -> list[str]:
    """Return what an option was given."""
    return [words[place + 1] for place, word in enumerate(words) if word == option]


def test_file_follows_the_compose_specification() -> None:
    checker = Path(sys.executable).parent / "check-jsonschema"
    done = run(checker, "--builtin-schema", "vendor.compose-spec", FILE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_line_is_the_same_as_the_file() -> None:
    described = lines()
    assert len(described) == 2
    for words in described:
        assert words[-1] == SERVICE["image"] == f"dragoman:{VERSION}"
        assert values(words, "--publish") == SERVICE["ports"]
        variables = dict(word.split("=") for word in values(words, "--env"))
        assert variables == SERVICE["environment"]
        assert values(words, "--restart") == [SERVICE["restart"]]
        assert int(values(words, "--stop-timeout")[0]) == duration(SERVICE["stop_grace_period"])
        (kept,) = values(words, "--volume")
        assert kept.partition(":")[2] == SERVICE["volumes"][0].partition(":")[2]


def test_volume_and_port_are_those_of_the_image() -> None:
    (volume,) = re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    (port,) = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert SERVICE["volumes"] == [f"data:{volume}"]
    assert SERVICE["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert load(None, {}).number("server.port") == int(port)


@pytest.mark.system
def test_router_serves_with_what_the_container_gets(tmp_path: Path) -> None:
    image = dict(re.findall(r"\bROUTER_(\w+)=(\S+)", DOCKERFILE.partition("\nENV ")[2]))
    own = {name.removeprefix("ROUTER_"): text for name, text in SERVICE["environment"].items()}
    stack = Stack(tmp_path, "--workers", "1", **(image | own))
    stack.start()
    try:
        asked = urllib.request.Request(f"{stack.url}/events/greetings", b"hello")
        asked.add_header("Content-Type", "text/plain")
        with urllib.request.urlopen(asked, timeout=20) as answer:
            assert answer.status == 200
    finally:
        assert stack.stop() == 0
