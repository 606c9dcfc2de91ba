"""Which topics a client means by a pattern, and the hash by which it knows the list already.

Patterns are RE2: a client's pattern cannot keep the broker busy, whatever it is made of. The
alternative, Python's own expressions with a bound on their length, has short patterns that take
years. What RE2 does not know (looking ahead, references back) Apache Pulsar evaluates as Java does;
here the client has to evaluate it itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import crc32c
import re2

from router.errors.quoting import quoted

MAX_PATTERN: Final = 1_000
MAX_MEMORY: Final = 1 << 18
"""Of one pattern; it bounds the time that reading it takes as well, to a few milliseconds."""

_DOMAINS: Final = ("non-persistent", "persistent")
_SEPARATOR: Final = "://"
_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = MAX_MEMORY

Matcher = Callable[[str], bool]


class PatternError(ValueError):
    """A pattern that is not evaluated here; `str()` says why."""


def matcher(pattern: str) -> Matcher:
    """Return what tells of a topic whether it matches; raise PatternError.

    It is given a topic's full name, not a partition's. The whole of `tenant/namespace/topic` has to
    match; the domain does not count, neither the topic's nor the pattern's.
    """
    text = _without_domain(pattern)
    if len(text) > MAX_PATTERN:
        raise PatternError(f"Pattern longer than maximum: {MAX_PATTERN}")
    # A set of one: it answers without the places of the match, in a fifth of the time.
    compiled = re2.Set.FullMatchSet(_OPTIONS)
    try:
        compiled.Add(text)
        compiled.Compile()
    except re2.error as error:
        raise PatternError(f"Pattern not understood: {quoted(text)}") from error

    def matches(name: str) -> bool:
        return bool(compiled.Match(name.partition(_SEPARATOR)[2].encode()))

    return matches


def topics_hash(names: Iterable[str]) -> str:
    """Return what Apache Pulsar calls the hash of a list: of its names in order, joined by commas.

    A CRC32-C, its lowest byte first, as the library that Apache Pulsar takes it from writes it.
    """
    joined = ",".join(sorted(names))
    return crc32c.crc32c(joined.encode()).to_bytes(4, "little").hex()


def _without_domain(pattern: str) -> str:
    prefix, separator, rest = pattern.partition(_SEPARATOR)
    if not separator:
        return pattern
    for domain in _DOMAINS:
        if prefix.endswith(domain):
            # An anchor may stand before it.
            return prefix.removesuffix(domain) + rest
    raise PatternError(f"Does not support topic domain: {prefix}")
