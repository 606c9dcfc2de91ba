"""Words (tokens) and values of HTTP's fields (RFC 9110, 5.5 and 5.6.2), as parts of patterns."""

from __future__ import annotations

from typing import Final

WORD: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
VALUE: Final = r"[\t\x20-\x7e\x80-\xff]*"
