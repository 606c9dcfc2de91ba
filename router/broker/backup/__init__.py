"""Backups of a data folder: taking them, reading them whole, and making a data folder of one.

Everything here runs in the process of a command, beside the broker or without one.
"""

from router.broker.backup.failures import BackupError
from router.broker.backup.manifest import Manifest
from router.broker.backup.repository import Repository

__all__ = ["BackupError", "Manifest", "Repository"]
