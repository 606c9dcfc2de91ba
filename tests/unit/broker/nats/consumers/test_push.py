"""The outlet of push consumers: interest, flow control and heartbeats."""

from __future__ import annotations

from router.broker.nats.consumers.pull import DeliveryRun, Status
from router.broker.nats.consumers.push import FIRST_WINDOW_BYTES, MAX_RUN, PushOutlet
from router.wire.nats.jetstream.config import ConsumerConfig
from tests.unit.broker.nats.consumers.test_pull import SECOND, Clients


class Pushing:
    def __init__(self, *, flow_control: bool = False, idle_heartbeat: int = 0) -> None:
        self.sent: list[Status] = []
        self.clients = Clients()
        config = ConsumerConfig(
            deliver_subject="out", flow_control=flow_control, idle_heartbeat=idle_heartbeat
        )
        self.outlet = PushOutlet(config, self.clients, self.sent.append, "$JS.FC.S.C.")


def test_messages_go_out_while_there_is_a_subscriber_that_takes_them() -> None:
    pushing = Pushing()
    assert pushing.outlet.choose(10, 0) is None
    pushing.outlet.bind(True, 0)
    assert pushing.outlet.choose(10, 0) == "out"
    pushing.clients.full.add("out")
    assert pushing.outlet.choose(10, 0) is None
    pushing.clients.full.clear()
    pushing.outlet.bind(False, 0)
    assert pushing.outlet.choose(10, 0) is None


def test_messages_that_flow_control_does_not_count_go_in_runs() -> None:
    pushing = Pushing(idle_heartbeat=SECOND)
    assert pushing.outlet.choose_run(0) is None
    pushing.outlet.bind(True, 0)
    assert pushing.outlet.choose_run(0) == DeliveryRun("out", MAX_RUN)
    pushing.outlet.run_sent(3, 5)
    assert pushing.outlet.next_event() == 5 + SECOND
    controlled = Pushing(flow_control=True)
    controlled.outlet.bind(True, 0)
    assert controlled.outlet.choose_run(0) is None


def test_flow_control_asks_at_half_of_the_window_and_stalls_behind_it() -> None:
    pushing = Pushing(flow_control=True, idle_heartbeat=SECOND)
    pushing.outlet.bind(True, 0)
    pushing.outlet.sent("out", FIRST_WINDOW_BYTES // 2 + 1, 0)
    [asked] = pushing.sent
    assert (asked.to, asked.code, asked.text) == ("out", 100, "FlowControl Request")
    assert asked.reply.startswith("$JS.FC.S.C.")
    pushing.outlet.sent("out", FIRST_WINDOW_BYTES // 2, 0)
    assert pushing.outlet.choose(10, 0) is None
    pushing.outlet.tick(SECOND, (("Nats-Last-Stream", "1"),))
    assert dict(pushing.sent[-1].headers)["Nats-Consumer-Stalled"] == asked.reply
    assert not pushing.outlet.confirm("$JS.FC.S.C.none")
    assert pushing.outlet.confirm(asked.reply)
    assert pushing.outlet.choose(10, 0) == "out"
    assert not pushing.outlet.confirm(asked.reply)


def test_window_grows_with_each_answer() -> None:
    pushing = Pushing(flow_control=True, idle_heartbeat=SECOND)
    pushing.outlet.bind(True, 0)
    pushing.outlet.sent("out", FIRST_WINDOW_BYTES, 0)
    assert pushing.outlet.confirm(pushing.sent[-1].reply)
    pushing.outlet.sent("out", FIRST_WINDOW_BYTES, 0)
    assert len(pushing.sent) == 1
    pushing.outlet.sent("out", 1, 0)
    assert len(pushing.sent) == 2


def test_new_subscribers_begin_with_a_fresh_window() -> None:
    pushing = Pushing(flow_control=True, idle_heartbeat=SECOND)
    pushing.outlet.bind(True, 0)
    pushing.outlet.sent("out", 2 * FIRST_WINDOW_BYTES, 0)
    assert pushing.outlet.stalled
    pushing.outlet.bind(False, 0)
    pushing.outlet.bind(True, 0)
    assert pushing.outlet.choose(10, 0) == "out"


def test_heartbeats_come_only_while_nothing_is_sent_and_a_client_is_there() -> None:
    pushing = Pushing(idle_heartbeat=SECOND)
    assert pushing.outlet.next_event() is None
    pushing.outlet.bind(True, 0)
    assert pushing.outlet.next_event() == SECOND
    pushing.outlet.sent("out", 10, SECOND // 2)
    pushing.outlet.tick(SECOND, ())
    assert not pushing.sent
    pushing.outlet.tick(2 * SECOND, ())
    assert [one.text for one in pushing.sent] == ["Idle Heartbeat"]
