"""Texts that parameters of each type cannot be read from, and the parameters of administration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

NUMBERS: Final = ["x", "-1", "1.5", "5s", "abc", "1e3", "+1", "0x10", "٣", " 1", "1 "]
FLAGS: Final = ["maybe", "2", "truee", "-", "t"]
CHOICES: Final = ["maybe", "", "NEXT", "next "]
MOMENTS: Final = ["noon", "", "-1", "2026-01-01", "Earliest", "1.5"]

_TOPIC: Final = "/admin/v2/persistent/public/default/unreadable"
_SUBSCRIPTION: Final = f"{_TOPIC}/subscription/s"
ADMIN: Final = {
    ("DELETE", "/admin/v2/tenants/none"): {"force": FLAGS},
    ("DELETE", "/admin/v2/namespaces/public/none"): {"force": FLAGS},
    ("GET", "/admin/v2/namespaces/public/default/topics"): {"mode": CHOICES},
    ("POST", "/admin/v2/namespaces/public/default/backlogQuota"): {"backlogQuotaType": CHOICES},
    ("DELETE", _TOPIC): {"force": FLAGS},
    ("DELETE", f"{_TOPIC}/partitions"): {"force": FLAGS},
    ("GET", f"{_TOPIC}/partitions"): {"checkAllowAutoCreation": FLAGS},
    ("GET", f"{_TOPIC}/partitioned-stats"): {"perPartition": FLAGS},
    ("DELETE", _SUBSCRIPTION): {"force": FLAGS},
    ("GET", f"{_TOPIC}/examinemessage"): {"initialPosition": CHOICES, "messagePosition": NUMBERS},
    ("GET", f"{_SUBSCRIPTION}/position/{{position}}"): {"position": NUMBERS},
    ("GET", f"{_TOPIC}/ledger/{{ledger}}/entry/0"): {"ledger": NUMBERS},
    ("GET", f"{_TOPIC}/ledger/0/entry/{{entry}}"): {"entry": [*NUMBERS, "9" * 20, "9" * 9999]},
    ("POST", f"{_SUBSCRIPTION}/skip/{{count}}"): {"count": NUMBERS},
    ("POST", f"{_SUBSCRIPTION}/expireMessages/{{seconds}}"): {"seconds": NUMBERS},
    ("POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}"): {"seconds": NUMBERS},
    ("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}"): {"timestamp": NUMBERS},
    ("GET", "/admin/v2/schemas/public/default/unreadable/schema/{version}"): {"version": NUMBERS},
}


def cases(
    table: Mapping[tuple[str, str], Mapping[str, list[str]]],
) -> list[tuple[str, str, list[str]]]:
    """Return method, name, and addresses with unreadable texts of each parameter of a table."""
    found = []
    for (method, path), parameters in table.items():
        for name, texts in parameters.items():
            place = f"{{{name}}}"
            if place not in path:
                path_with = f"{path}{'&' if '?' in path else '?'}{name}={place}"
            else:
                path_with = path
            urls = [path_with.replace(place, quote(text, safe="")) for text in texts]
            found.append((method, name, urls))
    return found
