"""Finds the programs that check the deployment files; installs them where it may."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
INSTALLATION = 240


@cache
def tool(name: str, package: str) -> str:
    """Return where a program is; root on Debian installs it first; without it the test fails."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    found = shutil.which(name, path=path)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(package)
        found = shutil.which(name, path=path)
    if found is None:
        raise AssertionError(
            f"{name} is missing: install it, on Debian with apt-get install {package}"
        )
    return found


def _install(package: str) -> None:
    """Install a package, without starting the service that comes with it (RUNLEVEL=1)."""
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=environ,
            check=False,
            timeout=INSTALLATION,
            stdout=subprocess.DEVNULL,
        )


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a checker; its exit status and what it said are for the test to judge."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
