"""Turns the position of a consumer in an archive into the state of a consumer, and back."""

from __future__ import annotations

from router.broker.consume.cursor.pending import MAX_PENDING, DeliveryRules
from router.broker.nats.consumers.state import ConsumerState, PendingDelivery, SequencePair
from router.wire.nats.archive.parts import ConsumerPosition, damaged


def position_of(state: ConsumerState, now_ns: int) -> ConsumerPosition:
    """Return where a consumer stands; what waits for its delivery counts as delivered long ago."""
    pending, redelivered = {}, {}
    for sequence, number, count, deadline_ns in state.deliveries():
        wait_ns = state.rules.wait(count)
        pending[sequence] = number, max(0, (deadline_ns or now_ns) - wait_ns)
        if count > 1:
            redelivered[sequence] = count - 1
    delivered, floor = state.delivered, state.floor
    return ConsumerPosition(
        (delivered.consumer, delivered.stream), (floor.consumer, floor.stream), pending, redelivered
    )


def restored_state(rules: DeliveryRules, position: ConsumerPosition, last: int) -> ConsumerState:
    """Return the state of a consumer of a stream that ends with a sequence; raise ProtocolError."""
    if len(position.pending) > MAX_PENDING:
        raise damaged(f"a consumer has more than {MAX_PENDING} pending messages")
    delivered = SequencePair(position.delivered[0], min(position.delivered[1], last))
    floor = SequencePair(position.floor[0], min(position.floor[1], delivered.stream))
    pending = []
    for sequence, (number, time_ns) in sorted(position.pending.items()):
        if floor.stream < sequence <= delivered.stream:
            count = 1 + min(position.redelivered.get(sequence, 0), MAX_PENDING)
            pending.append(PendingDelivery(sequence, number, count, time_ns + rules.wait(count)))
    return ConsumerState.standing_at(rules, delivered, floor, pending)
