"""The node's leases: which poll of which worker may read which partition of which subscription.

Theory of operation. Every claim of a worker is a *poll*; polls of one subscription share a
`PartitionAssignor` (router/sharing/assignment.py), which says who holds what. What it changes in
one step is gathered and sent in one CLAIM_UPDATE a poll; the first one answers a claim at once,
even with nothing. A grant waits until the node itself holds the partition's lease
(router/coordination), which on a single node it does at once, and carries a new *generation*: later
generations are larger, over restarts too, because the store's boot counter is their upper half.
Acknowledgements of older ones are refused.

Between nodes. The lease of a partition is asked for when the partition is assigned to a poll, and
asked for no longer when that poll ends without it: no node queues without a poll. Once held it
stays with the node between polls (*warm*: a poll then costs no word to the other nodes), until the
group has no live id here, or until another node wants it. Then it goes at once if no poll holds the
partition, or when the poll that does ends or is asked to give it up, because the other node's id
owns it by now; a poll that comes meanwhile queues again behind the other node, so that nodes take
turns. When a lease is lost its poll gets `withdrawn` and may not acknowledge any more; it keeps its
place in the assignment, and gets a new grant when the lease is held again. Where a poll left its
positions to the next one of its id, they go as a note with a lease that another node queues for.

Between polls of an id. A worker may *retain* a claim whose poll delivered messages: it stands, with
its grants, and the id's next poll at that worker asks nothing here. It is recalled when another
poll of the id comes, when another node queues for one of its leases, or for an administrator who
moves or ends the group; the worker then releases it at once, or with the poll that uses it. What is
assigned to another id is revoked as ever. The alternative, a claim for each poll that the broker
does not know of, could not be recalled.

Everything here is in memory, lives on the event loop's thread and is bounded. A broker that
restarts has lost all connections, and with them all claims; nothing is left to be remembered, and
writing leases to disk, the alternative, would only have delayed the next holder.

Not answered here: how many messages a poll takes, and when it acknowledges them. That is the
front's (services/consume).
"""

from __future__ import annotations

from router.broker.consume.membership.leases.leases import Leases
from router.broker.consume.membership.leases.polls import (
    CallLater,
    ClaimGrant,
    ClaimRequest,
    ClaimUpdate,
    PollPeer,
)

__all__ = ["CallLater", "ClaimGrant", "ClaimRequest", "ClaimUpdate", "Leases", "PollPeer"]
