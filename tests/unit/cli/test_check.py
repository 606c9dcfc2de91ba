"""`router check`: says what is in force and what is wrong, and mends only when told to."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from router.broker.folder import MARK
from router.broker.storage import StoreError
from router.broker.storage.files import InspectionFinding
from router.cli import check, main, preflight
from router.process import node_socket, supervised
from router.settings import SETTINGS


def run(folder: Path, *arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(
        main,
        ["check", "--data", str(folder), *arguments],
        env={"ROUTER_CONFIG": "", "ROUTER_SERVER_PORT": "0", **environ},
    )


def test_check_names_each_part_that_is_in_order(tmp_path: Path, free_port: int) -> None:
    users = tmp_path / "users"
    users.touch()
    given = {
        "ROUTER_SERVER_PORT": str(free_port),
        "ROUTER_AUTH_USERS": str(users),
        "ROUTER_BROKER_PULSAR": "127.0.0.1:0",
    }
    result = run(tmp_path / "data", **given)
    assert result.exit_code == 0
    for said in (
        "the settings go together",
        f"data.dir: {tmp_path / 'data'} is not there and can be made",
        f"auth.users: {users} can be read",
        f"server.port: 127.0.0.1:{free_port} is free",
        "broker.pulsar: 127.0.0.1:0 is free",
    ):
        assert f"ok: {said}\n" in result.output
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("environ", "setting"),
    [
        ({"ROUTER_SERVER_HOST": "0.0.0.0"}, "server.host"),
        ({"ROUTER_SERVER_CERT": "{absent}"}, "server.cert"),
        ({"ROUTER_AUTH_USERS": "{absent}"}, "{absent}"),
        ({"ROUTER_AUTH_USERS": "{file}"}, "line 1: expected name:hash"),
        ({"ROUTER_AUTH_PERMISSIONS": "{file}"}, "auth.permissions"),
        ({"ROUTER_BROKER_PULSAR": "0.0.0.0:1"}, "broker.pulsar"),
        ({"ROUTER_BACKEND_URL": "carrier-pigeon"}, "backend.url"),
        ({"ROUTER_ZOOKEEPER_SERVERS": "zk:1"}, "zookeeper.servers"),
        ({"ROUTER_SERVER_PORT": "{taken}"}, "server.port"),
        ({"ROUTER_SERVER_TRUSTED_PROXIES": "nonsense"}, "server.trusted_proxies"),
    ],
)
def test_check_finds_what_serve_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], setting: str
) -> None:
    monkeypatch.setattr(preflight, "REACH_SECONDS", 0.2)
    (tmp_path / "file").write_text("nonsense\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        words = {
            "absent": str(tmp_path / "absent"),
            "file": str(tmp_path / "file"),
            "taken": str(other.getsockname()[1]),
        }
        given = {name: text.format(**words) for name, text in environ.items()}
        result = run(tmp_path / "data", **given)
    assert result.exit_code == os.EX_CONFIG
    errors = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert setting.format(**words) in "".join(errors)
    assert not (tmp_path / "data").exists()


def test_check_names_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(tmp_path / "file" / "data")
    assert result.exit_code == os.EX_CANTCREAT
    assert f"Error: data.dir = {tmp_path / 'file' / 'data'}" in result.output


def test_check_names_the_address_of_a_pulsar_listener_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run(tmp_path, ROUTER_BROKER_PULSAR=address)
    assert result.exit_code == os.EX_UNAVAILABLE
    assert f"Error: broker.pulsar: cannot listen on {address}" in result.output


@pytest.mark.parametrize("kind", ["kafka", "pulsar"])
def test_check_names_a_backend_that_does_not_answer(
    tmp_path: Path, kind: str, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "REACH_SECONDS", 0.2)
    url = f"{kind}://127.0.0.1:{free_port}"
    result = run(tmp_path, ROUTER_BACKEND_URL=url)
    assert result.exit_code == os.EX_UNAVAILABLE
    assert f"Error: backend.url = {url}: " in result.output
    assert not (tmp_path / "broker.lock").exists()


def test_check_names_a_zookeeper_that_does_not_answer(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "REACH_SECONDS", 0.2)
    servers = f"127.0.0.1:{free_port}"
    given = {
        "ROUTER_BACKEND_URL": f"pulsar://127.0.0.1:{free_port}",
        "ROUTER_ZOOKEEPER_SERVERS": servers,
    }
    result = run(tmp_path, **given)
    assert result.exit_code == os.EX_UNAVAILABLE
    assert f"Error: zookeeper.servers = {servers}: " in result.output


def test_check_tries_no_port_where_a_router_runs(tmp_path: Path) -> None:
    with closing(supervised.take(tmp_path)), socket.create_server(("127.0.0.1", 0)) as other:
        result = run(tmp_path, ROUTER_SERVER_PORT=str(other.getsockname()[1]))
    assert result.exit_code == 0
    assert "server.port: not tried" in result.output


def test_check_prints_every_setting_with_its_origin(tmp_path: Path) -> None:
    output = run(tmp_path / "data").output
    for setting in SETTINGS:
        assert f"{setting.name} " in output
    assert output.count("  default\n") == len(SETTINGS) - 2
    assert "variable ROUTER_SERVER_PORT" in output
    assert "command line" in output


def test_check_prints_changed_settings_only_when_asked(tmp_path: Path) -> None:
    lines = run(tmp_path, "--changed").output.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["server.port", "data.dir"]
    assert {line.split()[0] for line in lines[2:-1]} == {"ok:"}
    assert lines[-1] == f"{tmp_path}: in order"


def test_check_changes_nothing_in_an_empty_folder(tmp_path: Path) -> None:
    assert run(tmp_path / "data").exit_code == 0
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "environ", [{"ROUTER_SERVER_PROT": "1"}, {"ROUTER_SERVER_HOST": "0.0.0.0"}]
)
def test_check_fails_when_a_setting_would_stop_the_start(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    assert run(tmp_path, **environ).exit_code == 78


def test_check_fails_on_a_marked_folder_until_it_is_repaired(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text("the disk failed")
    result = run(tmp_path)
    assert result.exit_code == 65
    assert "the disk failed" in result.output
    assert "--repair" in result.output
    assert run(tmp_path, "--repair").exit_code == 0
    assert run(tmp_path).exit_code == 0


def test_check_is_content_with_findings_that_mend_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.report_findings(tmp_path, [InspectionFinding("a torn tail", serious=False)]) == 0
    assert "a torn tail" in capsys.readouterr().out


def test_check_fails_when_the_metadata_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_folder: Path) -> list[InspectionFinding]:
        raise StoreError("the metadata is damaged")

    monkeypatch.setattr(check, "check", broken)
    result = run(tmp_path)
    assert result.exit_code == 65
    assert "Error: the metadata is damaged" in result.output


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--repair"], 75)])
def test_check_leaves_a_folder_alone_that_a_broker_serves(
    tmp_path: Path, arguments: list[str], status: int
) -> None:
    with node_socket.listen(tmp_path):
        result = run(tmp_path, *arguments)
    assert result.exit_code == status
    assert "a broker serves it" in result.output


def test_check_prints_no_secret(tmp_path: Path) -> None:
    secrets = {
        "ROUTER_KAFKA_PASSWORD": "hunter2",
        "ROUTER_AUTH_ADMIN_SECRET": "hunter2",
        "ROUTER_ZOOKEEPER_DIGEST": "anna:hunter2",
        "ROUTER_BACKEND_URL": "kafka://anna:hunter2@k1:9092",
    }
    output = run(tmp_path, **secrets).output
    assert "hunter2" not in output
    assert output.partition("ok: ")[0].count("***") == len(secrets)


def test_check_fails_when_nodes_would_share_leases_but_no_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "REACH_SECONDS", 0.2)
    result = run(tmp_path, ROUTER_ZOOKEEPER_SERVERS="zk:2181")
    assert result.exit_code == 78
    assert "zookeeper.servers is set" in result.output


def test_check_fails_when_the_certificate_does_not_serve(tmp_path: Path) -> None:
    result = run(tmp_path, "--cert", str(tmp_path / "absent"))
    assert result.exit_code == 78
    assert "server.cert" in result.output
