"""How many messages a second topics are given."""

from __future__ import annotations

from router.model import TopicName
from router.services import rates as module
from router.services.rates import Rates

TOPIC = TopicName.parse("t")


def test_rate_is_that_since_the_oldest_look_within_a_minute() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    assert rates.look(TOPIC, 100) is None
    now = 0.5
    assert rates.look(TOPIC, 100) is None
    now = 10.0
    assert rates.look(TOPIC, 300) == 20.0
    now = 65.0
    assert rates.look(TOPIC, 300) == 0.0
    now = 66.0
    assert rates.look(TOPIC, 10) is None


def test_looks_are_bounded() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    for number in range(module.MAX_TOPICS + 10):
        rates.look(TopicName.parse(f"t{number}"), 0)
    for step in range(1_000):
        now = step / 20
        rates.look(TOPIC, step)
    assert len(rates._looks) == module.MAX_TOPICS
    assert len(rates._looks[TOPIC]) <= module.MAX_LOOKS
