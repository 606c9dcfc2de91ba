"""The functions that Spark knows: what a step calls besides them does not exist."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "functions.txt"
# Parts of Spark's grammar, which SHOW FUNCTIONS leaves out.
_GRAMMAR: Final = frozenset({"identifier", "timestampadd", "timestampdiff", "try_cast"})


@cache
def functions() -> frozenset[str]:
    """Return the names of Spark's functions in lower case, as its SHOW FUNCTIONS gives them."""
    return _GRAMMAR | frozenset(FILE.read_text("utf-8").split())
