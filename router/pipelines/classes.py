"""Spark's classes in an archive that a JVM maps when it starts, instead of reading them from jars.

Most of a local run's first twenty seconds is thousands of classes that are found, checked and
linked; mapped from an archive of them (class data sharing) it starts in two thirds of the time.
The archive is good for one JVM and one set of jars: its name has both, and a JVM that finds it
unfit goes on without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from router.pipelines.following import Say, run_followed

MAKE_SECONDS: Final = 300.0
# Whatever is wrong with an archive makes a start slower, and is nothing that a user has to know.
_QUIET: Final = "-Xlog:cds*=off -Xlog:class+path=off"


def archive(home: Path, java: str) -> Path:
    """Return where it is or would be, by the home of Spark and what Java says of itself."""
    jars = sorted((path.name, path.stat().st_mtime_ns) for path in (home / "jars").glob("*.jar"))
    name = hashlib.sha256(f"{java} {jars}".encode()).hexdigest()[:16]
    return home / f"classes-{name}.jsa"


def options(home: Path, java: str) -> str:
    """Return the JVM's options that use the archive, none while there is none."""
    found = archive(home, java)
    return f"{_option('SharedArchiveFile', found)} {_QUIET}" if found.is_file() else ""


def make(home: Path, java: str, say: Say) -> bool:
    """Make the archive, which takes most of a minute; return whether it is there now.

    `say` shows what is done meanwhile.
    """
    made = archive(home, java)
    if made.is_file():
        return True
    say(f"Archiving Spark's classes, about a minute, into {made}")
    part = made.with_suffix(f".{os.getpid()}")
    command = [sys.executable, "-m", "router.pipelines.exercise"]
    # The second compiler pays in the long run only.
    command.append(f"{_option('ArchiveClassesAtExit', part)} -XX:TieredStopAtLevel=1 {_QUIET}")
    try:
        # It ends when the JVM, which has its output too, has written the archive.
        if run_followed(command, "Archiving", say, MAKE_SECONDS).returncode != 0:
            return False
        part.rename(made)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        part.unlink(missing_ok=True)
    return made.is_file()


def _option(name: str, path: Path) -> str:
    """Return an option in the quotes of Spark's lists of options: a path may have spaces."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"-XX:{name}={escaped}"'
