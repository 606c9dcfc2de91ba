"""Kafka's message definitions that the product uses: the installed kafka-python's, and some own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

OWN: Final = Path(__file__).parent / "messages"
"""Of APIs that kafka-python lacks: the consumer group protocol (KIP-848), as Apache released it."""


def definition_texts() -> dict[str, str]:
    """Return the text of each definition by its file name; raise FileNotFoundError."""
    found = folder_texts(_folder())
    if not found:
        raise FileNotFoundError(f"{_folder()} holds no message definitions")
    return folder_texts(OWN) | found


def definition_text(file: str) -> str:
    """Return the text of one definition; raise FileNotFoundError."""
    return (_folder() / file).read_text("utf-8")


def _folder() -> Path:
    """Return where the definitions are: the package is not imported, which loads its own codec."""
    spec = importlib.util.find_spec("kafka")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "kafka-python, which ships the message definitions, is not installed"
        )
    return Path(spec.submodule_search_locations[0], "protocol", "schemas", "resources")


def folder_texts(folder: Path) -> dict[str, str]:
    """Return the text of each definition of a folder by its file name; raise OSError."""
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.json"))}
