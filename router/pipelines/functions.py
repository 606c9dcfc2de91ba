"""The functions that Spark knows: what a step calls besides them does not exist."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "functions.txt"
# Parts of Spark's grammar, which SHOW FUNCTIONS leaves out.
_GRAMMAR: Final = frozenset(
    {
        *("cast", "collate", "extract", "identifier", "overlay", "position", "struct", "substr"),
        *("substring", "timestampadd", "timestampdiff", "trim", "try_cast"),
        *("current_date", "current_time", "current_timestamp", "current_user", "user"),
        *("dateadd", "datediff", "date_add", "date_diff", "first", "last", "any_value"),
        *("percentile_cont", "percentile_disc", "session_window", "window"),
    }
)


@cache
def functions() -> frozenset[str]:
    """Return the names of Spark's functions in lower case, as its SHOW FUNCTIONS gives them."""
    return _GRAMMAR | frozenset(FILE.read_text("utf-8").split())
