"""The two servers that all clients of NATS run their scenarios against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nats.playing import Shown
from tests.ports import free_port
from tests.system.stack import Stack

OURS = "ours"


class NatsStack(Stack):
    """The product with its listeners: their addresses are `nats`, `kafka` and `pulsar`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.nats, self.kafka, self.pulsar = (f"127.0.0.1:{free_port()}" for _ in range(3))
        flags = ("--workers", "1", "--nats", self.nats, "--kafka", self.kafka)
        super().__init__(folder, *flags, "--pulsar", self.pulsar, **settings)

    @property
    def nats_url(self) -> str:
        """What clients of NATS connect to."""
        return f"nats://{self.nats}"


@pytest.fixture(scope="package")
def nats_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsStack]:
    """`python -m router serve --nats …`, which serves all dialects."""
    stack = NatsStack(tmp_path_factory.mktemp("router"))
    stack.start()
    yield stack
    assert stack.stop() == 0


@pytest.fixture(scope="package", params=["nats_server", OURS])
def shown(request: pytest.FixtureRequest) -> Shown:
    """What scenarios show on nats-server, then on the router's broker."""
    if request.param == OURS:
        url = request.getfixturevalue("nats_stack").nats_url
    else:
        url = request.getfixturevalue("nats_server").url
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {(call.params["client"], call.params["name"]) for call in calls
              if call is not None and call.params.get("shown") == request.param}  # fmt: skip
    return Shown(request.param, url, wanted)
