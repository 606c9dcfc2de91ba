"""Commits that follow polls: those of all consumers of a worker go together.

Theory of operation. A poll that retains its consumer does not wait for its acknowledgement. The
consumer notes how far it is, and one thread commits for all of them INTERVAL_SECONDS later: one
request asks the node whether their grants stand, one request for each coordinator what the groups
have committed, and the commits, which Kafka takes for one group each, follow each other over one
connection without waiting. Each consumer decides by itself, as for a commit of its own
(`consumer`). Where a request to Kafka fails, and with transactions, each commits by itself, so that
a group that cannot commit holds up no other; all of it has COMMIT_SECONDS. What fails then is left
to the poll: its consumer defers nothing more.

A consumer is closed when its last commit is done, which hands its group over. After a kill of the
worker the messages of at most INTERVAL_SECONDS and one commit come again.

One lock guards the queue; it is never held over I/O.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from router.backends.kafka.offsets import GroupCommit, Offsets
from router.errors import BackendUnavailableError, FencedError, RouterError
from router.errors.quoting import failure_text
from router.node import Node

if TYPE_CHECKING:
    from router.backends.kafka.consumer import KafkaConsumer

INTERVAL_SECONDS: Final = 0.01
COMMIT_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 5.0
"""The thread ends when nothing was committed for so long."""

_log = structlog.get_logger(__name__)


class CommitQueue:
    """Commits for the consumers of a worker; calls may be made from many threads."""

    def __init__(self, node: Node, offsets: Offsets) -> None:
        self._node = node
        self._offsets = offsets
        self._lock = threading.Lock()
        self._queue: dict[KafkaConsumer, None] = {}
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, consumer: KafkaConsumer) -> None:
        """Have a consumer commit soon; never waits."""
        with self._lock:
            self._queue[consumer] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kafka-commits", daemon=True)
                self._thread.start()
        self._wakeup.set()

    def _run(self) -> None:
        while True:
            self._wakeup.wait(IDLE_SECONDS)
            time.sleep(INTERVAL_SECONDS)
            self._wakeup.clear()
            with self._lock:
                consumers, self._queue = list(self._queue), {}
                if not consumers:
                    self._thread = None
                    return
            self.commit([consumer for consumer in consumers if consumer.begin_commit()])

    def commit(self, consumers: list[KafkaConsumer]) -> None:
        """Commit for consumers that have begun to."""
        if not consumers:
            return
        left = dict.fromkeys(consumers)
        deadline = time.monotonic() + COMMIT_SECONDS
        try:
            confirmed = self._confirmed(consumers)
            try:
                self._together(left, confirmed, deadline)
            except RouterError as error:
                _log.info("each group commits by itself", reason=str(error))
            for consumer in list(left):
                del left[consumer]
                # Each by itself: a transaction takes several requests, and so may a failure.
                threading.Thread(target=_alone, args=(consumer, deadline), daemon=True).start()
        except Exception as error:  # noqa: BLE001 - the thread's rim: the consumers get the failure
            if not isinstance(error, RouterError):
                _log.exception("committing failed")
                error = BackendUnavailableError(f"committing failed: {failure_text(error)}")
            for consumer in left:
                consumer.end_commit(error)

    def _confirmed(self, consumers: Sequence[KafkaConsumer]) -> list[bool]:
        """Return whose grants stand; raise what prevents the node from saying so."""
        return self._node.confirm_all([one.grant for one in consumers], COMMIT_SECONDS)

    def _together(
        self, left: dict[KafkaConsumer, None], confirmed: Sequence[bool], deadline: float
    ) -> None:
        """Commit what can be together, and take it out of what is left."""
        consumers = list(left)
        found = self._offsets.settled_by([one.of for one in consumers], deadline)
        commits: dict[KafkaConsumer, GroupCommit] = {}
        for one, is_confirmed in zip(consumers, confirmed, strict=True):
            try:
                commit = one.next_commit(found.get(one.of), is_confirmed=is_confirmed)
            except FencedError as error:
                del left[one]
                one.end_commit(error)
            else:
                if commit is not None:
                    commits[one] = commit
        done = self._offsets.commit_all([*commits.values()], deadline)
        for one, commit in commits.items():
            if commit.group in done:
                del left[one]
                one.end_commit(None)


def _alone(consumer: KafkaConsumer, deadline: float) -> None:
    failure: RouterError | None = None
    try:
        consumer.commit_alone(deadline)
    except RouterError as error:
        failure = error
    except Exception as error:  # noqa: BLE001 - the thread's rim: the consumer gets the failure
        _log.exception("committing failed")
        failure = BackendUnavailableError(f"committing failed: {failure_text(error)}")
    consumer.end_commit(failure)
