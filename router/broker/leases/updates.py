"""What polls must be told, gathered so that one step of the deal is one update a poll."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from router.broker.leases.polls import Peer, Poll
from router.wire.pulsar import pulsar_pb2 as pb


@dataclass(slots=True)
class Update:
    """What one poll has not been told yet; readers apply it in the order of its fields."""

    withdrawn: set[int] = field(default_factory=set)
    granted: dict[int, pb.Grant] = field(default_factory=dict)
    revoked: set[int] = field(default_factory=set)
    limited_ms: int | None = None

    def grant(self, grant: pb.Grant) -> None:
        """Tell of a partition that the poll holds from now on."""
        self.granted[grant.partition] = grant
        self.revoked.discard(grant.partition)

    def withdraw(self, partition: int) -> None:
        """Tell that the poll must not act on its grant any more, known to it or not."""
        self.granted.pop(partition, None)
        self.revoked.discard(partition)
        self.withdrawn.add(partition)


class Updates:
    """The updates of all polls; `describe` adds what is true when one is sent."""

    def __init__(self, describe: Callable[[Poll, pb.CommandClaimUpdate], None]) -> None:
        self._describe = describe
        self._of: dict[Poll, Update] = {}

    def of(self, poll: Poll) -> Update:
        """Return what the poll will be told with the next flush, which tells it something."""
        return self._of.setdefault(poll, Update())

    def drop(self, poll: Poll) -> None:
        """Tell a poll nothing more."""
        self._of.pop(poll, None)

    def flush(self) -> None:
        """Send what was gathered."""
        updates, self._of = self._of, {}
        for poll, update in updates.items():
            command = pb.CommandClaimUpdate(
                claim_id=poll.claim_id,
                withdrawn=sorted(update.withdrawn),
                granted=update.granted.values(),
                revoked=sorted(update.revoked),
            )
            if update.limited_ms is not None:
                command.limited_ms = update.limited_ms
            self._describe(poll, command)
            send(poll.peer, command)

    def __len__(self) -> int:
        return len(self._of)


def send(peer: Peer, update: pb.CommandClaimUpdate) -> None:
    """Send one update of a claim."""
    peer.send(pb.BaseCommand(type=pb.BaseCommand.CLAIM_UPDATE, claim_update=update))
