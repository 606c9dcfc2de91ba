"""Records what nats-server shows in the scenarios whose results are long.

python -m tests.nats.record    plays them against the real server and writes tests/nats/recorded
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.nats.playing import PYTHON, play
from tests.nats.scenarios import RECORDED, SCENARIOS
from tests.servers.nats import Nats

FOLDER: Final = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    """Return what the real server showed in a scenario."""
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def main() -> None:
    """Play and write."""
    names = [name for name, (_, expected) in SCENARIOS.items() if expected is RECORDED]
    with tempfile.TemporaryDirectory() as folder:
        server = Nats(Path(folder))
        try:
            server.start()
            found = play(PYTHON, server.url, names)
        finally:
            server.stop()
    FOLDER.mkdir(exist_ok=True)
    for name, outcome in found.items():
        if outcome.error:
            raise RuntimeError(f"{name}: {outcome.error}")
        (FOLDER / f"{name}.json").write_text(_lines(outcome.shows), "utf-8")


def _lines(shows: Any) -> str:
    """Return JSON with a line for each step."""
    if isinstance(shows, dict):
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in shows.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"
    return "[\n" + ",\n".join(json.dumps(one) for one in shows) + "\n]\n"


if __name__ == "__main__":
    main()
