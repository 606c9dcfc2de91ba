"""Backups at the node's broker: a cut is held for as long as the connection that began it."""

from __future__ import annotations

import time
from typing import Final

from router.model.administration import BackupCut, JournalCut
from router.node.requests import ask
from router.pulsar_client.link import Link
from router.wire.node import node_pb2 as npb

BEGIN_SECONDS: Final = 120.0
"""The broker writes down what is in memory, on a disk that is busy."""


class BackupCalls:
    """Begins and ends the backup of a broker's folder."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def begin(self) -> BackupCut:
        """Have the broker hold its files; raise ConflictError if another backup is taken."""
        command = npb.CommandAdmin(begin_backup=npb.Nothing())
        cut = ask(self._link, command, time.monotonic() + BEGIN_SECONDS, again=False).backup
        if not cut.HasField("journal_size"):
            return BackupCut(cut.id, None)
        journal = JournalCut(cut.journal_first, cut.journal_last, cut.journal_size)
        return BackupCut(cut.id, journal)

    def end(self, cut: BackupCut) -> None:
        """Let the files go.

        Raises ConflictError if they were not held until now, BackendUnavailableError if the broker
        is gone.
        """
        command = npb.CommandAdmin(end_backup=cut.id)
        ask(self._link, command, time.monotonic() + BEGIN_SECONDS, again=False)
