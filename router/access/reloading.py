"""What SIGHUP has a process read again: users, permissions, keys of tokens, certificates.

Each of them is looked at again by itself, within a second of a change. A reload reads them whether
they seem changed or not, and says so.
"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import WeakSet

import structlog

from router.errors import SettingError

_log = structlog.get_logger(__name__)


class Reloadable(Protocol):
    """Something that was read from files."""

    def reload(self) -> None:
        """Read the files again; raise SettingError, and change nothing, where they are unfit."""
        ...


_parts: Final[WeakSet[Reloadable]] = WeakSet()


def reloadable(part: Reloadable) -> None:
    """Have `reload_all` reload this part for as long as it is in use."""
    _parts.add(part)


def reload_all() -> None:
    """Reload all parts that this process uses; what does not load stays as it is, and is logged."""
    failed = 0
    for part in (parts := list(_parts)):
        try:
            part.reload()
        except SettingError as error:
            failed += 1
            _log.error("not reloaded; what was read last stays in force", reason=str(error))
    _log.info("reloaded", parts=len(parts), failed=failed)
