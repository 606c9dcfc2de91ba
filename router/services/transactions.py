"""The transactions that are open at the node's broker: listed, described, aborted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from router.errors import NotSupportedError


class TransactionAdministration(Protocol):
    """The calls of administration at the node's broker."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call."""
        ...


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Asks the node's broker; `administration` None: messages do not live there.

    Calls raise NotSupportedError then, and BackendUnavailableError and BackendTimeoutError; those
    that name a transaction, by its `id` or its producer's transactional id, ValueNotFoundError.
    """

    administration: TransactionAdministration | None

    def listed(self) -> dict[str, Any]:
        """Return the open `transactions`, the oldest first, and their `count`.

        Each has `id`, `dialect`, `state`, `producer`, `user`, `epoch`, `begun_ms`, `age` and
        `timeout` in seconds, and the numbers of its `partitions` and `positions`.
        """
        return self._call("transactions")

    def described(self, name: str) -> dict[str, Any]:
        """Return one with its partitions (`joined`), and what it `commits` and `acknowledged`."""
        return self._call("transaction", transaction=name)

    def abort(self, name: str) -> dict[str, Any]:
        """Abort one, fence its producer, and return it as it was; raise ConflictError."""
        return self._call("abort_transaction", transaction=name)

    def _call(self, name: str, **arguments: Any) -> dict[str, Any]:
        if self.administration is None:
            raise NotSupportedError("transactions are known of the node's own broker only")
        found: dict[str, Any] = self.administration.call(name, **arguments)
        return found
