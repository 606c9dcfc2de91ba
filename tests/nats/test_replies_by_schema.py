"""Every reply and configuration that the model can make, by the schemas of jsm.go."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.jetstream.replies import ApiReply, PubAck
from tests.nats.schemas import configuration_faults, faults
from tests.nats.strategies import RESULTS, consumer_configs, errors, tools_stream_configs

pytestmark = pytest.mark.slow
few = settings(max_examples=30, deadline=None)


@few
@given(st.data())
@pytest.mark.parametrize("kind", sorted(RESULTS))
def test_a_reply_is_valid(kind: str, data: st.DataObject) -> None:
    reply = ApiReply(kind, data.draw(RESULTS[kind]))
    assert faults(orjson.loads(reply.to_bytes())) == []


@few
@given(errors)
@pytest.mark.parametrize("kind", sorted(RESULTS))
def test_an_error_is_valid_inside_its_type(kind: str, refused: JetStreamError) -> None:
    assert faults(orjson.loads(ApiReply(kind, error=refused).to_bytes())) == []


@few
@given(tools_stream_configs)
def test_a_stream_configuration_is_valid(config: StreamConfig) -> None:
    assert configuration_faults("stream_configuration", config.to_json()) == []


@few
@given(consumer_configs)
def test_a_consumer_configuration_is_valid(config: ConsumerConfig) -> None:
    assert configuration_faults("consumer_configuration", config.to_json()) == []


@given(st.integers(1, 1 << 62), st.booleans(), st.none() | errors)
def test_an_acknowledgement_of_a_publish_is_valid(
    sequence: int, duplicate: Any, refused: JetStreamError | None
) -> None:
    ack = PubAck("S", 0 if refused else sequence, duplicate, refused)
    assert faults(orjson.loads(ack.to_bytes())) == []
