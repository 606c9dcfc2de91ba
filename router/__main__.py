"""The command line: `python -m router`, installed as `router` too."""

from __future__ import annotations

from router.cli import main

if __name__ == "__main__":
    main()
