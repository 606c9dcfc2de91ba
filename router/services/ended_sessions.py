"""Sessions that their users ended: records of the registry, kept until the sessions would end.

A record of the kind `session-end` is named by the session's id and holds the time in ms at which
the session ends by itself. Every sign-out removes the records whose time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from router.backends import Registry
from router.errors import RouterError
from router.registry import ANY
from router.services.remembered import Remembered

KIND: Final = "session-end"
REMEMBERED_SECONDS: Final = 2.0
"""Time within which a session that was ended at one worker ends at all."""
MAX_REMEMBERED: Final = 10_000

_log = structlog.get_logger(__name__)


class EndedSessions:
    """The ended sessions of all nodes; callable from many threads or greenlets."""

    def __init__(
        self,
        registry: Registry,
        timeout: float,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._timeout = timeout
        self._wall_ms = wall_ms
        self._remembered = Remembered(self._is_ended, REMEMBERED_SECONDS, MAX_REMEMBERED, clock)

    def has(self, session: str) -> bool:
        """Return whether a session was ended; raise what the registry raises."""
        return self._remembered.get(session)

    def add(self, session: str, ends_ms: int) -> None:
        """End a session that ends by itself at this time.

        A registry that does not take the record is logged, and no failure: the browser forgets its
        session all the same.
        """
        try:
            self._remove_old()
            self._registry.put(KIND, session, b"%d" % ends_ms, ANY, self._timeout)
        except RouterError as error:
            _log.warning("copies of a session stay good until it ends", reason=str(error))
        self._remembered.forget(session)

    def _is_ended(self, session: str) -> bool:
        return self._registry.get(KIND, session, self._timeout) is not None

    def _remove_old(self) -> None:
        now = self._wall_ms()
        for record in self._registry.list(KIND, self._timeout):
            if int(record.value) <= now:
                self._registry.delete(KIND, record.name, self._timeout)
