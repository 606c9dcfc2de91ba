"""Parallel runs keep a group in one worker, whatever pytest and pytest-xdist make of names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import pytest
from tests.sharing import share

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    share(items)

@pytest.fixture
def kafka():
    pass

@pytest.fixture
def browser():
    pass

@pytest.fixture
def page(browser):
    pass

@pytest.fixture(params=["memory", "kafka"])
def opened(request):
    return request.param

@pytest.fixture(params=[("memory", "kafka")], ids=["memory-kafka"])
def pair(request):
    return request.param
"""
MODULE = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_alone_in_its_file(number): ...

@pytest.mark.parametrize("number", range(3))
def test_with_the_server(kafka, number): ...

@pytest.mark.parametrize("number", range(3))
def test_with_a_page(page, number): ...

@pytest.mark.parametrize("number", range(3))
def test_with_a_parameter(opened, number): ...

@pytest.mark.parametrize("number", range(3))
def test_with_one_of_a_pair(pair, number): ...
"""


def workers_by_group(folder: Path) -> dict[str, set[str]]:
    """Run the modules in two workers; return which of them ran the tests of each group."""
    parallel = ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *parallel, "-v", "--rootdir", folder, "-c", "/dev/null"],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if " PASSED " in line:
            found.setdefault(line.rpartition("@")[2].strip(), set()).add(line.split()[0])
    return found


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_tests_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(MODULE)
    found = workers_by_group(tmp_path)
    assert set(found) == {"browser", "kafka", "test_one.py", "test_two.py"}
    assert all(len(workers) == 1 for workers in found.values()), found
