from __future__ import annotations

import pytest

from router.errors import (
    ConsumerClosedError,
    CredentialsRefusedError,
    DiskFullError,
    RouterError,
    TopicHeldError,
    TopicNotFoundError,
    by_code,
)
from router.pulsar_client.refusals import TABLE, ProducerNameBusyError, refusal
from router.wire.pulsar import pulsar_pb2 as pb


def test_every_error_of_the_protocol_has_a_meaning() -> None:
    assert set(TABLE) == set(pb.ServerError.values())


@pytest.mark.parametrize("code", sorted(by_code()))
def test_a_sentence_that_begins_with_a_code_is_that_failure(code: str) -> None:
    failure = refusal(pb.UnknownError, f"{code}: what happened")
    assert (failure.code, str(failure)) == (code, "what happened")


def test_the_number_decides_without_a_code() -> None:
    failure = refusal(pb.TopicNotFound, "Topic a: not found")
    assert type(failure) is TopicNotFoundError
    assert str(failure) == "Topic a: not found"


def test_a_full_disk_is_told_from_other_failures_to_store() -> None:
    assert type(refusal(pb.PersistenceError, "disk-full: no space")) is DiskFullError


def test_a_name_in_use_is_told_from_other_refusals() -> None:
    assert type(refusal(pb.ProducerBusy, "not-allowed: taken")) is ProducerNameBusyError


def test_refused_credentials_are_not_shown_again() -> None:
    failure = refusal(pb.AuthenticationError, "unauthenticated: The token has expired.")
    assert type(failure) is CredentialsRefusedError
    assert not failure.retriable


def test_a_topic_that_is_held_is_told_from_a_name_in_use() -> None:
    held = "Topic has an existing exclusive producer: standalone-0-1"
    assert type(refusal(pb.ProducerBusy, held)) is TopicHeldError


def test_a_consumer_that_the_broker_does_not_know_was_closed() -> None:
    assert type(refusal(pb.MetadataError, "Consumer not found")) is ConsumerClosedError


def test_an_error_of_a_future_protocol_is_a_failure_too() -> None:
    assert isinstance(refusal(999, "new"), RouterError)
