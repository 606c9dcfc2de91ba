"""`python -m router.broker --data DIR [--pulsar HOST:PORT] [--stay]`: the node's broker process."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from router.broker.process import run
from router.errors import SettingError
from router.settings import config_file, load


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the broker; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m router.broker",
        description="The broker of a node. `router broker` and `router serve` start it for you.",
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the node's broker")
    parser.add_argument("--pulsar", metavar="HOST:PORT", help="where to serve Pulsar clients")
    parser.add_argument("--stay", action="store_true", help="stay when the last client has left")
    given = parser.parse_args(arguments)
    # What it writes is its own, whatever makes the file.
    os.umask(0o077)
    flags = {"data.dir": given.data, "broker.pulsar": given.pulsar}
    try:
        settings = load(
            config_file(os.environ), os.environ, {k: v for k, v in flags.items() if v is not None}
        )
    except SettingError as error:
        sys.stderr.write(f"router.broker: {error}\n")
        return os.EX_CONFIG
    return run(settings, stay=given.stay)


if __name__ == "__main__":
    sys.exit(main())
