"""deploy/systemd: units that systemd understands, that are closed, and that stop in time."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from router.cli import broker_child, serve
from router.settings import duration, load
from tests.deploy.tools import DEPLOY, run, tool

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
BACKUP, *SERVICES = UNITS
TIMER = DEPLOY / "systemd" / "dragoman-backup.timer"
PROGRAM = "/opt/dragoman/bin/router"
EXPOSURE = "20"  # tenths of the ten points that systemd gives a unit that may do anything


def installed(unit: Path, folder: Path) -> Path:
    """Copy a unit, with the router of this environment as its program."""
    text = unit.read_text(encoding="utf-8")
    assert f"ExecStart={PROGRAM} " in text
    copy = folder / unit.name
    copy.write_text(text.replace(f"={PROGRAM} ", f"={Path(sys.executable).parent / 'router'} "))
    return copy


def value(unit: Path, key: str) -> str:
    """Return what a unit says to a key that is there once."""
    found = re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 1, key
    return str(found[0])


def verify(*units: Path) -> tuple[int, str]:
    """Return the status and complaints of systemd about units."""
    done = run(tool("systemd-analyze", "systemd"), "verify", "--man=no", *units)
    return done.returncode, done.stdout + done.stderr


def test_there_is_a_unit_for_the_node_one_for_the_broker_and_one_for_backups() -> None:
    names = [f"dragoman{part}.service" for part in ("-backup", "-broker", "")]
    assert [unit.name for unit in UNITS] == names


def test_units_are_understood_by_systemd(tmp_path: Path) -> None:
    shutil.copy(TIMER, tmp_path)
    found = [*(installed(unit, tmp_path) for unit in UNITS), tmp_path / TIMER.name]
    assert verify(*found) == (0, "")


@pytest.mark.parametrize("mistake", ["LockPersonality", "ExecStart"])
def test_verification_complains_about_a_unit_with_a_mistake(mistake: str, tmp_path: Path) -> None:
    unit = installed(SERVICES[0], tmp_path)
    unit.write_text(unit.read_text().replace(f"{mistake}=", f"{mistake}s="))
    status, said = verify(unit)
    assert status or mistake in said


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_leave_little_to_an_intruder(unit: Path) -> None:
    analyze = tool("systemd-analyze", "systemd")
    options = ["--offline=true", "--no-pager", f"--threshold={EXPOSURE}"]
    done = run(analyze, "security", *options, unit)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


def test_measure_of_exposure_refuses_an_open_unit(tmp_path: Path) -> None:
    unit = tmp_path / "open.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    analyze = tool("systemd-analyze", "systemd")
    options = ["--offline=true", "--no-pager", f"--threshold={EXPOSURE}"]
    assert run(analyze, "security", *options, unit).returncode != 0


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_units_hear_how_the_service_fares_and_reload_it_by_a_hangup(unit: Path) -> None:
    assert value(unit, "Type") == "notify"
    assert value(unit, "ExecReload") == "/bin/kill -HUP $MAINPID"
    assert duration(value(unit, "WatchdogSec").replace("min", "m")) >= 60


def test_stopping_has_the_time_that_the_router_takes() -> None:
    front = load(None, {}).seconds("server.graceful_timeout") + serve.MARGIN_SECONDS
    alone, node = SERVICES
    assert duration(value(node, "TimeoutStopSec")) >= front + broker_child.STOP_SECONDS + 5
    assert duration(value(alone, "TimeoutStopSec")) >= broker_child.STOP_SECONDS + 5


def test_units_do_not_restart_what_a_restart_does_not_help() -> None:
    for unit in SERVICES:
        assert value(unit, "RestartPreventExitStatus") == "65 78"


def test_timer_starts_the_backup_each_night() -> None:
    calendar = value(TIMER, "OnCalendar")
    done = run(tool("systemd-analyze", "systemd"), "calendar", "--iterations=3", calendar)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("02:30:00") >= 3
    assert TIMER.with_suffix(".service") == BACKUP
