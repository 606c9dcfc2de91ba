"""What settings say to the Kafka backend."""

from __future__ import annotations

import pytest

from router.backends.kafka.options import MIN_INFLATED_BYTES, KafkaOptions
from router.settings import load


@pytest.mark.parametrize(
    ("answered", "inflated"),
    [("1k", MIN_INFLATED_BYTES), ("5M", MIN_INFLATED_BYTES), ("32M", 32 << 20)],
)
def test_batch_is_inflated_though_a_poll_answers_little_of_it(answered: str, inflated: int) -> None:
    """Passed over, all of its messages would be lost to the group."""
    settings = load(None, {}, {"consume.max_bytes": answered})
    assert KafkaOptions.of(settings).max_inflated == inflated
