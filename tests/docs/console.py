"""Commands and their expected output, as documentation shows them in console blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
URL = "http://127.0.0.1:3904"
# What a page writes for any text.
ELLIPSIS = "…"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """One command and the output that the page promises."""

    command: str
    output: str

    def matches(self, output: str) -> bool:
        """Return whether the output is what the page says."""
        pattern = ".*".join(re.escape(part) for part in self.output.split(ELLIPSIS))
        return re.fullmatch(pattern, output.replace("\r\n", "\n").strip(), re.DOTALL) is not None


def blocks(page: Path, language: str) -> list[str]:
    """Return the text of a page's code blocks of one language."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language]


def steps(page: Path) -> Iterator[Step]:
    """Yield the commands of a page's console blocks, in their order."""
    return steps_of(page.read_text(encoding="utf-8"))


def steps_of(text: str) -> Iterator[Step]:
    """Yield the commands of a text's console blocks, in their order."""
    for block in (block for kind, block in _BLOCK.findall(text) if kind == "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Step(command, output.strip())
