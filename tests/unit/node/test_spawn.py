from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from router.errors import BackendUnavailableError, NotServedError
from router.node.spawn import LOG, REGISTRY, Spawner
from router.process import node_socket, supervised
from tests.processes import wait_until
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side


def test_a_folder_marked_read_only_gets_no_broker(tmp_path: Path) -> None:
    (tmp_path / "READ-ONLY").write_text("sector 7 is gone\n")
    began = time.monotonic()
    with pytest.raises(NotServedError, match=r"sector 7 is gone.*check --repair"):
        Spawner(tmp_path, {}).dial(began + 10)
    assert time.monotonic() - began < 8
    assert not (tmp_path / LOG).exists()


def test_where_somebody_else_starts_brokers_none_is_started(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        Spawner(tmp_path, {}, spawn=False).dial(time.monotonic() + 0.1)
    assert caught.value.retry_after is not None
    assert not (tmp_path / LOG).exists()


def test_a_supervised_folder_gets_no_broker_from_a_client(tmp_path: Path) -> None:
    with closing(supervised.take(tmp_path)):
        with pytest.raises(BackendUnavailableError, match=f"process {os.getpid()} keeps running"):
            Spawner(tmp_path, {}).dial(time.monotonic() + 0.1)
        assert not (tmp_path / LOG).exists()


def test_a_client_waits_for_the_broker_of_the_supervisor(tmp_path: Path) -> None:
    broker = FakeBroker()
    dialled = threading.Event()

    def serve() -> None:
        dialled.wait(WAIT)
        with node_socket.listen(tmp_path) as listener:
            listener.setblocking(True)
            Side(broker, listener.accept()[0])

    serving = threading.Thread(target=serve)
    with closing(supervised.take(tmp_path)):
        spawner = Spawner(tmp_path, {})
        with pytest.raises(BackendUnavailableError):
            spawner.dial(time.monotonic())
        serving.start()
        dialled.set()
        connection = spawner.dial(time.monotonic() + WAIT)
        serving.join(WAIT)
        assert connection.ours
        connection.close()


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotServedError, match="cannot be used"):
        Spawner(tmp_path / "file" / "data", {}).dial(time.monotonic() + 10)


@pytest.mark.slow
def test_starts_that_fail_are_repeated_with_pauses(tmp_path: Path) -> None:
    variables = {"ROUTER_NO_SUCH_SETTING": "1"}
    began = time.monotonic()
    with pytest.raises(BackendUnavailableError, match=LOG):
        Spawner(tmp_path, variables).dial(began + 3)

    def starts() -> int:
        return (tmp_path / LOG).read_text().count("ROUTER_NO_SUCH_SETTING")

    # A busy machine may take longer than that until the first one says why it ends.
    wait_until(lambda: starts() > 0)
    assert starts() <= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "a broker is started there."),
        ("embedded", "a broker is started there."),
        (
            "kafka://u:secret@kafka1:9092",
            "the node's process for leases and access rights is started there, for kafka://u:***@",
        ),
    ],
    ids=["default", "embedded", "kafka"],
)
def test_a_start_in_a_folder_without_data_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, what: str
) -> None:
    variables = {"ROUTER_NO_SUCH_SETTING": "1"} | ({"ROUTER_BACKEND_URL": url} if url else {})
    spawner = Spawner(tmp_path / "data", variables)
    for _ in range(2):
        with pytest.raises(BackendUnavailableError):
            spawner.dial(time.monotonic() + 0.5)
    said = capsys.readouterr().err
    assert said.count("holds no data") == 1
    assert what in said
    assert "secret" not in said
    assert str(tmp_path / "data") in said
    assert "--data" in said


def test_a_start_in_a_folder_with_data_is_not_worth_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / REGISTRY).touch()
    with pytest.raises(BackendUnavailableError):
        Spawner(tmp_path, {"ROUTER_NO_SUCH_SETTING": "1"}).dial(time.monotonic() + 0.1)
    assert (tmp_path / LOG).exists()
    assert capsys.readouterr().err == ""
