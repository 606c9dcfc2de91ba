"""A process that runs greenlets, as workers do: 20 polls wait on Kafka while others publish."""

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402 - everything else comes after the patching
import threading  # noqa: E402
from collections.abc import Sequence  # noqa: E402

import gevent  # noqa: E402

from router import settings  # noqa: E402
from router.backends import Batch, Start, kafka  # noqa: E402
from router.backends.memory import MemoryNode  # noqa: E402
from router.model import Grant, Message, Subscription, TopicInfo, TopicName  # noqa: E402

WAIT = 20.0
GROUPS = 20
MESSAGES = 20


class Node(MemoryNode):
    """Confirms every generation: there are no claims here."""

    def confirm(self, grant: Grant, timeout: float) -> None:
        """Return."""

    def confirm_all(self, grants: Sequence[Grant], timeout: float) -> list[bool]:
        """Return that each stands."""
        return [True] * len(grants)


class Bell:
    """A mailbox to wait at."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def wake(self) -> None:
        """Ring."""
        self.event.set()


def main(address: str) -> None:
    """Publish from many greenlets; every group must see every message once."""
    backend = kafka.open_backend(f"kafka://{address}", settings.load(None, {}, {}), Node())
    topic = TopicName.parse("greenlets")
    backend.create_topic(TopicInfo(topic), WAIT)

    def poll(number: int) -> list[bytes]:
        group, bell, seen = Subscription(topic, f"g{number}"), Bell(), list[bytes]()
        backend.subscribe(group, Start.EARLIEST, WAIT)
        while len(seen) < MESSAGES:
            consumer = backend.consume(Grant(group, -1, len(seen)), bell, WAIT)
            while not (found := consumer.receive(7, 1 << 20, WAIT)):
                assert bell.event.wait(WAIT)
                bell.event.clear()
            consumer.acknowledge(found[-1].position, WAIT)
            consumer.close()
            seen += [stored.message.value for stored in found]
        return sorted(seen)

    waiting = [gevent.spawn(poll, number) for number in range(GROUPS)]
    wanted = sorted(b"%d" % number for number in range(MESSAGES))
    gevent.joinall(
        [gevent.spawn(backend.publish, Batch(topic, -1, [Message(v)]), WAIT) for v in wanted],
        raise_error=True,
    )
    assert [poll.get(timeout=WAIT) for poll in waiting] == [wanted] * GROUPS
    backend.close()
    assert threading.active_count() == 1
    sys.stdout.write("ok\n")


main(sys.argv[1])
