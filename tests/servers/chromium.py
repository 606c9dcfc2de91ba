"""The browser of the tests: Chromium or Chrome as the machine has it, found by its name.

    python -m tests.servers.chromium    says in one sentence when there is none

Playwright's own downloads are not used: Debian's package gets its security updates, and a machine
without access to other hosts than its package mirrors can have it. Only the standard library is
used: this runs before anything is installed.
"""

from __future__ import annotations

import shutil
import sys

from tests.servers.maven import MissingServerError

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str:
    """Return where the browser is; raise MissingServerError."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise MissingServerError(
        f"The tests start a browser and cannot find {', '.join(NAMES)}: "
        "install one of them, on Debian with apt-get install chromium"
    )


def main() -> None:
    """End with one sentence and status 1 when there is no browser."""
    try:
        executable()
    except MissingServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
