"""deploy/docker/Dockerfile: it copies what is there, which is all that the wheel needs."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import click
import pytest

from router.cli import main
from router.process.build import VERSION
from tests.deploy.tools import DEPLOY, ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

FILE = DEPLOY / "docker" / "Dockerfile"
TEXT = FILE.read_text(encoding="utf-8")


def copies() -> list[tuple[list[str], str]]:
    """Return what is copied out of the project: sources and target of each COPY."""
    found = [line.split()[1:] for line in TEXT.splitlines() if line.startswith("COPY ")]
    return [(words[:-1], words[-1]) for words in found if not words[0].startswith("--")]


def test_what_it_copies_exists_and_is_not_ignored() -> None:
    ignore = (FILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    sources = [source for given, _ in copies() for source in given]
    assert len(sources) == 6
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source


@pytest.mark.slow
def test_what_it_copies_makes_the_whole_wheel(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for given, target in copies():
        for name in given:
            place = source / target / (name if target == "./" else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            ignored = shutil.ignore_patterns("__pycache__")
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=ignored)
            else:
                shutil.copy(ROOT / name, place)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([*pip, *options, str(source)], check=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(file.relative_to(ROOT)) for file in (ROOT / "router").rglob("*.py")}
    assert wanted | {"router/py.typed", "router/wire/pulsar/pulsar.proto"} <= inside


def test_it_runs_as_a_user_without_rights() -> None:
    stages = re.split(r"^FROM ", TEXT, flags=re.MULTILINE)
    assert len(stages) == 3
    assert re.search(r"^USER (\d+):\1$", stages[-1], re.MULTILINE)
    assert "USER 0" not in TEXT


def test_images_and_version_are_pinned() -> None:
    assert re.search(r"^ARG PYTHON=python:\d+\.\d+\.\d+-[\w-]+$", TEXT, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)) == {"${PYTHON}"}
    for file in [FILE, FILE.parent / "compose.yaml", *(DEPLOY / "kubernetes").glob("*.yaml")]:
        tags = set(re.findall(r"dragoman:(\d[\w.]*)", file.read_text(encoding="utf-8")))
        assert tags == {VERSION}, file.name


def test_it_starts_a_command_that_exists() -> None:
    assert isinstance(main, click.Group)
    assert 'ENTRYPOINT ["tini", "--", "router"]' in TEXT
    (command,) = re.findall(r'^CMD \["(\w+)"\]$', TEXT, re.MULTILINE)
    assert command in main.list_commands(click.Context(main))
