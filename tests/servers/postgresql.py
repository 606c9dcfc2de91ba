"""A real PostgreSQL on loopback, as Debian's package has it; it refuses to run as root.

    python -m tests.servers.postgresql    says in one sentence when there is none

Only the standard library is used: this runs before anything is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers.maven import MissingServerError
from tests.servers.process import ServerProcess

USER = "router"
PASSWORD = "a password"
_PROGRAMS = ("postgres", "initdb", "psql")
SECONDS = 60.0


def programs() -> dict[str, str]:
    """Return where its programs are; raise MissingServerError."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    found = {name: shutil.which(name, path=path) for name in _PROGRAMS}
    if missing := [name for name, where in found.items() if where is None]:
        raise MissingServerError(
            f"The tests start PostgreSQL and cannot find {', '.join(missing)}: "
            "install it, on Debian with apt-get install postgresql"
        )
    return {name: where for name, where in found.items() if where is not None}


class Postgresql(ServerProcess):
    """One server with the database `postgres`, which takes the password of USER alone."""

    NAME = "postgresql"

    def __init__(self) -> None:
        # Its user, who is not that of the tests where these run as root, does not get into theirs.
        super().__init__(Path(tempfile.mkdtemp(prefix="router-postgresql-")))
        self.password_file = self.folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        if os.geteuid() == 0:
            for path in (self.folder, self.password_file):
                shutil.chown(path, "postgres")
        where = ["-D", str(self.folder / "data"), "--username", USER, "--no-sync"]
        auth = ["--auth", "scram-sha-256", "--pwfile", str(self.password_file), "--no-locale"]
        command = [*self._as_its_user(), programs()["initdb"], *where, *auth, "-E", "UTF8"]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, cwd=self.folder)

    @property
    def url(self) -> str:
        """What the sink connects to."""
        return f"jdbc:postgresql://{self.address}/postgres"

    def run(self, *statements: str) -> list[list[str]]:
        """Run statements of SQL; return the rows that they give, as texts."""
        done = self._psql(*statements)
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    def close(self) -> None:
        """Stop it, and take its folder away."""
        self.stop()
        shutil.rmtree(self.folder)

    def _psql(self, *statements: str) -> subprocess.CompletedProcess[str]:
        command = [programs()["psql"], "-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1"]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "postgres"]
        command += [word for statement in statements for word in ("-c", statement)]
        environ = {**os.environ, "PGPASSWORD": PASSWORD}
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def _as_its_user(self) -> list[str]:
        if os.geteuid() != 0:
            return []
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def _command(self) -> list[str]:
        where = ["-D", str(self.folder / "data"), "-h", "127.0.0.1", "-p", str(self.port)]
        settings = ["-k", str(self.folder), "-c", "fsync=off"]
        return [*self._as_its_user(), programs()["postgres"], *where, *settings]

    def _ready(self) -> bool:
        return self._psql("SELECT 1").returncode == 0


def main() -> None:
    """End with one sentence and status 1 when there is no PostgreSQL."""
    try:
        programs()
    except MissingServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
