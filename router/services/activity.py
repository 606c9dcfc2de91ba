"""What the node's broker does and did: rates, lag, disk, alerts, connections, and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from router.errors import NotSupportedError
from router.model import Position, TopicName
from router.model.publish_source import PublishSource

SPANS: Final = {"15m": 15, "1h": 60, "6h": 360, "24h": 1440}
"""Minutes that a history may cover."""


class ActivityAdministration(Protocol):
    """The calls of administration at the node's broker."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call."""
        ...


@dataclass(frozen=True, slots=True)
class BrokerActivity:
    """What the broker did: `latest` values by their names, and `series` of [ms, values].

    `groups` have `topic`, `group`, `lag` and `seconds` (None: not known), `topics` have `topic` and
    `rate`, `alerts` have `name`, `severity` and `text`. `connections` counts the clients by
    protocol.
    """

    latest: dict[str, float]
    times: Sequence[float]
    series: dict[str, list[float]]
    disk_size: float
    connections: dict[str, int]
    polls_waiting: float
    topics: Sequence[dict[str, Any]]
    groups: Sequence[dict[str, Any]]
    alerts: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Activities:
    """Asks the node's broker; `administration` None: messages do not live there.

    Calls raise BackendUnavailableError and BackendTimeoutError.
    """

    administration: ActivityAdministration | None

    def recent(self, span: str) -> BrokerActivity | None:
        """Return what happened in one of SPANS, None: nothing is recorded here."""
        if self.administration is None:
            return None
        found = self.administration.call("activity", minutes=SPANS[span])
        fields, samples = found["fields"], found["samples"]
        columns = list(zip(*samples, strict=True)) if samples else [()] * len(fields)
        series = dict(zip(fields, map(list, columns), strict=True))
        return BrokerActivity(
            latest=dict(zip(fields, found["latest"], strict=True)),
            times=series.pop("at"),
            series=series,
            disk_size=found["disk_size"],
            connections=found["connections"],
            polls_waiting=found["polls_waiting"],
            topics=found["topics"],
            groups=found["groups"],
            alerts=found["alerts"],
        )

    def publish_source(self, topic: TopicName, position: Position) -> PublishSource | None:
        """Return who published a message, None: that is not known, or not any more."""
        if self.administration is None:
            return None
        found = self.administration.call(
            "publish_source",
            topic=str(topic),
            partition=position.partition,
            entry=position.entry,
            index=position.batch_index,
        )
        return None if found is None else PublishSource(**found)

    def connections(self) -> dict[str, Any]:
        """Return the `clients` of the broker and their `count`; raise NotSupportedError."""
        found: dict[str, Any] = self._calls().call("connections")
        return found

    def disconnect(self, peer: str) -> int:
        """End the connections from an address and port; raise NotSupportedError, BadRequestError.

        Returns how many there were.
        """
        found: int = self._calls().call("disconnect", peer=peer)["disconnected"]
        return found

    def record(
        self, action: str, target: str, user: str, address: str, details: Mapping[str, Any]
    ) -> None:
        """Record an administrative change; do nothing where there is no audit."""
        if self.administration is not None:
            self.administration.call(
                "record_change",
                action=action,
                target=target,
                user=user,
                address=address,
                details=details,
            )

    def audit(self, limit: int, text: str) -> list[dict[str, Any]]:
        """Return the last changes that hold a text, the newest first; raise NotSupportedError."""
        found: list[dict[str, Any]] = self._calls().call("audit", limit=limit, text=text)
        return found

    def _calls(self) -> ActivityAdministration:
        if self.administration is None:
            raise NotSupportedError("they are known of the node's own broker only")
        return self.administration
