"""The addresses that a listener sends its clients to, as a setting names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from router.errors import SettingError

MAX_PORT: Final = 65_535
_HOST_AND_PORT: Final = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})"


@dataclass(frozen=True, slots=True)
class Advertised:
    """The URLs for clients with and without TLS; if one is empty, such clients find no broker."""

    plain: str = ""
    tls: str = ""

    @classmethod
    def parse(cls, text: str, setting: str, scheme: str) -> Advertised:
        """Read up to one URL of each kind, with a comma between; raise SettingError."""
        secure = f"{scheme}+ssl"
        found: dict[str, str] = {}
        for url in filter(None, map(str.strip, text.split(","))):
            match = re.fullmatch(f"({scheme}|{scheme}\\+ssl)://{_HOST_AND_PORT}", url)
            if match is None or int(match[3]) > MAX_PORT or match[1] in found:
                raise SettingError(
                    f"{setting} = {text!r}: expected {scheme}://HOST:PORT,"
                    f" {secure}://HOST:PORT or both with a comma between"
                )
            found[match[1]] = url
        return cls(found.get(scheme, ""), found.get(secure, ""))


NOT_ADVERTISED: Final = Advertised()
"""Clients reach the broker again the way that they came."""
