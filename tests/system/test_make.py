"""`make serve` in a fresh checkout, with a Python that installs nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parent.parent.parent
# Answers what the Makefile asks of Python; `-m venv` makes another one of it, and a router.
PYTHON = """\
#!/bin/sh
case "$*" in
--version) echo "Python 3.99.0" ;;
"-m venv .venv")
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    printf '#!/bin/sh\\necho "router $*"\\n' >.venv/bin/router
    chmod +x .venv/bin/router ;;
*pip*install*--quiet* | *--quiet*pip*install*) ;;
*pip*install*) echo "Collecting flask" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "deploy").mkdir()
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "deploy/constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def serve(checkout: Path) -> list[str]:
    """Return the lines that `make serve` prints."""
    command = ["make", "--no-print-directory", "serve", f"PYTHON={checkout / 'python'}"]
    done = subprocess.run(
        [*command, "ARGS=--port 8080"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.splitlines()


def test_make_serve_says_what_it_does_while_it_installs(checkout: Path) -> None:
    making, installing, pip, *rest, started = serve(checkout)
    assert making == "Making a virtual environment in .venv with Python 3.99.0"
    assert installing.startswith("Installing the router and the packages that it needs into .venv")
    assert pip == "Collecting flask"
    assert rest == ["touch .venv/installed"]
    assert started == "router serve --port 8080"


def test_make_serve_starts_at_once_when_it_is_installed(checkout: Path) -> None:
    serve(checkout)
    assert serve(checkout) == ["router serve --port 8080"]
