"""How many messages go into one batch, and what a failure in between tells."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.kafka.failures import CodeError, KafkaCredentialsError, router_error
from router.backends.kafka.producing import (
    MAX_BATCH_BYTES,
    MAX_PUBLISH_BYTES,
    check_fit,
    in_parts,
    receipt,
)
from router.errors import (
    BackendTimeoutError,
    CredentialsRefusedError,
    NotSupportedError,
    PartialPublishError,
    PublishRefusedError,
    SubscriptionBusyError,
)
from router.model import Message
from router.wire.kafka.error_codes import ErrorCode
from router.wire.kafka.record_messages import write_messages


class Log:
    """A partition that takes batches up to a bound."""

    def __init__(self, bound: int = MAX_BATCH_BYTES, room: int = 10**9) -> None:
        self.values: list[bytes] = []
        self.batches = 0
        self._bound = bound
        self._room = room

    def send(self, messages: Sequence[Message]) -> int:
        if len(write_messages(messages, 0, (1, 0), 0)) > self._bound:
            failure = CodeError(10, "topic t")
            raise router_error(failure) from failure
        if self.batches == self._room:
            raise BackendTimeoutError
        self.batches += 1
        self.values += [message.value for message in messages]
        return len(self.values) - len(messages)


sizes = st.lists(st.integers(0, 400_000), min_size=1, max_size=12)


@given(sizes=sizes)
def test_every_message_is_sent_once_and_in_order_within_kafkas_bound(sizes: list[int]) -> None:
    log, batch = Log(), [Message(bytes(size)) for size in sizes]
    found = receipt(-1, in_parts(batch, log.send))
    assert [found.at(place).entry for place in range(len(batch))] == list(range(len(batch)))
    assert [len(value) for value in log.values] == sizes
    assert log.batches <= 1 + sum(sizes) // 300_000


@given(sizes=st.lists(st.integers(1, 2_000), min_size=1, max_size=12))
def test_a_smaller_bound_halves_until_it_fits_and_the_count_is_true(sizes: list[int]) -> None:
    log, batch = Log(bound=1_200), [Message(bytes(size)) for size in sizes]
    fits = [len(write_messages([message], 0, (1, 0), 0)) <= 1_200 for message in batch]
    if all(fits):
        in_parts(batch, log.send)
        assert [len(value) for value in log.values] == sizes
        return
    first = fits.index(False)
    with pytest.raises(PartialPublishError if first else PublishRefusedError) as refused:
        in_parts(batch, log.send)
    assert getattr(refused.value, "stored", 0) == first == len(log.values)


def test_a_failure_in_the_middle_tells_what_is_stored_before() -> None:
    batch = [Message(bytes(600_000)) for _ in range(3)]
    with pytest.raises(PartialPublishError) as refused:
        in_parts(batch, Log(room=2).send)
    assert refused.value.stored == 2
    with pytest.raises(BackendTimeoutError):
        in_parts(batch, Log(room=0).send)


def test_more_than_an_entry_is_refused_before_anything_is_sent() -> None:
    check_fit([Message(bytes(MAX_PUBLISH_BYTES))])
    with pytest.raises(PublishRefusedError):
        check_fit([Message(bytes(MAX_PUBLISH_BYTES)), Message(b"1")])


def test_a_time_of_delivery_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(NotSupportedError):
        check_fit([Message(b"1"), Message(b"2", deliver_at=0)])


def test_refused_credentials_are_not_shown_again() -> None:
    found = router_error(KafkaCredentialsError("h:1: credentials: wrong"))
    assert isinstance(found, CredentialsRefusedError)
    assert not found.retriable


def test_a_group_with_consumers_is_named_as_such() -> None:
    """The name of Kafka's error says nothing of it."""
    found = router_error(CodeError(ErrorCode.UNKNOWN_MEMBER_ID, "committing"))
    assert isinstance(found, SubscriptionBusyError)
    assert str(found) == (
        "Kafka: committing: UNKNOWN_MEMBER_ID, since the group has active consumers of Kafka's own"
        " protocol."
    )
