"""Where lookups send Pulsar clients, if not the way that they came."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from router.errors import SettingError

_URL: Final = re.compile(r"(pulsar|pulsar\+ssl)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Advertised:
    """The URLs for clients with and without TLS; empty: such clients find no broker."""

    plain: str = ""
    tls: str = ""

    @classmethod
    def parse(cls, text: str) -> Advertised:
        """Read up to one URL of each kind, with a comma between; raise SettingError."""
        found: dict[str, str] = {}
        for url in filter(None, map(str.strip, text.split(","))):
            match = _URL.fullmatch(url)
            if match is None or int(match[3]) > 65535 or match[1] in found:
                raise SettingError(
                    f"broker.advertised = {text!r}: expected pulsar://HOST:PORT,"
                    " pulsar+ssl://HOST:PORT or both with a comma between"
                )
            found[match[1]] = url
        return cls(found.get("pulsar", ""), found.get("pulsar+ssl", ""))


NOWHERE: Final = Advertised()
"""Clients are to come the way that they came."""
