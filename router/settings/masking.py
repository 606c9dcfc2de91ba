"""What of a URL may be shown: everything but passwords and tokens."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"
SECRETS: Final = frozenset(
    {"auth.admin_secret", "kafka.password", "pulsar.token", "zookeeper.digest"}
)
# user:password@ or token@ before a host, whatever is in it that should have been escaped, up to
# another URL that a query names; and what a query gives to names such as password, token, secret.
_USER: Final = r"(?:(?<=//)|^(?![a-z+]+://))"
_URL_PASSWORD: Final = re.compile(_USER + r"([^/?#@:]*:)(?:(?!=[a-z+]+://).)*@", re.S)
_URL_TOKEN: Final = re.compile(_USER + r"[^/?#@:]+@")
_QUERY_SECRET: Final = re.compile(
    r"((?:^|[?&])[^=&?]*(?:pass|secret|token|key)[^=&]*=)[^&#]+", re.I
)


def without_password(url: str) -> str:
    """Return a URL with *** for the password of its user and for secrets in its query."""
    url = _URL_TOKEN.sub(f"{MASK}@", _URL_PASSWORD.sub(rf"\1{MASK}@", url))
    return _QUERY_SECRET.sub(rf"\1{MASK}", url)


def shown(name: str, text: str) -> str:
    """Return a setting's text as it may be shown: *** for secrets."""
    if name in SECRETS:
        return MASK if text else ""
    return without_password(text) if name == "backend.url" else text
