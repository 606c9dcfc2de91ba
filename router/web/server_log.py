"""gunicorn's log lines, sent the way of the router's own."""

from __future__ import annotations

import logging
from typing import Any

from gunicorn.glogging import Logger


class Log(Logger):  # type: ignore[misc] # gunicorn has no type hints
    """Leaves writing to the root logger, and what only says that all is well to debug."""

    def setup(self, cfg: Any) -> None:
        """Take gunicorn's own handlers away again."""
        super().setup(cfg)
        for handler in list(self.error_log.handlers):
            self.error_log.removeHandler(handler)
        self.error_log.propagate = True
        if self.loglevel > logging.DEBUG:
            self.error_log.setLevel(max(self.loglevel, logging.WARNING))
