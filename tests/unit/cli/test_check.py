"""`router check`: says what is in force and what is wrong, and mends only when told to."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from router import node_socket
from router.broker.folder import MARK
from router.broker.ledger.check import Finding
from router.broker.ledger.faults import StoreError
from router.cli import check, main
from router.settings import SETTINGS


def run(folder: Path, *arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(
        main, ["check", "--data", str(folder), *arguments], env={"ROUTER_CONFIG": "", **environ}
    )


def test_check_prints_every_setting_with_its_origin(tmp_path: Path) -> None:
    output = run(tmp_path / "data", ROUTER_SERVER_PORT="17").output
    for setting in SETTINGS:
        assert f"{setting.name} " in output
    assert output.count("  default\n") == len(SETTINGS) - 2
    assert "variable ROUTER_SERVER_PORT" in output
    assert "command line" in output


def test_check_prints_changed_settings_only_when_asked(tmp_path: Path) -> None:
    lines = run(tmp_path, "--changed", ROUTER_SERVER_PORT="17").output.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["server.port", "data.dir"]
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
    assert check.told(tmp_path, [Finding("a torn tail", serious=False)]) == 0
    assert "a torn tail" in capsys.readouterr().out


def test_check_fails_when_the_metadata_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_folder: Path) -> list[Finding]:
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
    assert output.count("***") == len(secrets)


def test_check_fails_when_nodes_would_share_leases_but_no_messages(tmp_path: Path) -> None:
    result = run(tmp_path, ROUTER_ZOOKEEPER_SERVERS="zk:2181")
    assert result.exit_code == 78
    assert "zookeeper.servers is set" in result.output


def test_check_fails_when_the_certificate_does_not_serve(tmp_path: Path) -> None:
    result = run(tmp_path, "--cert", str(tmp_path / "absent"))
    assert result.exit_code == 78
    assert "server.cert" in result.output
