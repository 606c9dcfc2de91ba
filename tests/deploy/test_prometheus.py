"""deploy/prometheus: a real Prometheus evaluates each expression over a live router's metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.semconv._incubating.metrics import (
    http_metrics,
    messaging_metrics,
    process_metrics,
)
from opentelemetry.semconv.metrics import http_metrics as stable

from router.metrics import Metrics, render
from router.metrics.families import FAMILIES
from tests.deploy.tools import DEPLOY, ROOT, run
from tests.ports import free_port
from tests.servers import maven
from tests.servers.prometheus import Prometheus
from tests.system.stack import Stack
from tests.unit.web.applications import HASHES, header

FOLDER = DEPLOY / "prometheus"
SELECTOR = re.compile(r"\b(up|router_[a-z0-9_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"([a-z_]+)\s*(?:=|!=|=~|!~)\s*\"")


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules."""
    loaded = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def panels() -> list[tuple[str, str]]:
    """Return the dashboard's expressions as Grafana sends them, each with its panel's title."""
    loaded = json.loads((FOLDER / "dashboard.json").read_text())
    return [
        (
            panel["title"],
            target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m"),
        )
        for panel in loaded["panels"]
        for target in panel.get("targets", ())
    ]


def ask(stack: Stack, path: str, body: bytes | None = None, password: str = "secret") -> int:
    """Ask the router as anna; return the status."""
    asked = urllib.request.Request(f"{stack.url}{path}", body)
    asked.add_header("Authorization", header("anna", password))
    asked.add_header("Content-Type", "text/plain")
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def use(stack: Stack) -> None:
    """Have the router count something of everything."""
    assert ask(stack, "/events/orders", b"a\nb\nc") == 200
    assert ask(stack, "/events/orders/g1/c1?from=earliest&limit=1&timeout=5000") == 200
    assert ask(stack, "/events/orders", b"a", "wrong") == 401


def mapped() -> list[tuple[str, str]]:
    """Return the names of OpenTelemetry in the page's table, each with what is here."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `((?:messaging|http|process)\.[a-z_.]+)` \| `([^`]+)` \|", page, re.M)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router that was used."""
    folder = tmp_path_factory.mktemp("router")
    (folder / "users").write_text(f"anna:{HASHES['argon2']}\n")
    (folder / "users").chmod(0o600)
    stack = Stack(folder, "--workers", "1", auth_users=str(folder / "users"))
    stack.start()
    try:
        use(stack)
        done = run(
            sys.executable, "-m", "router", "backup", "backups", "--data", "data", cwd=folder
        )
        assert done.returncode == 0, done.stderr
        yield stack
    finally:
        stack.stop()


@pytest.fixture(scope="module")
def watched(router: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the router before it was used again, and after."""
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(folder, free_port(), f"127.0.0.1:{router.port}") as prometheus:
        # Rates need two samples of each series.
        prometheus.wait_for('count_over_time(router_logins_total{outcome="refused"}[1m]) > 1')
        prometheus.wait_for('count_over_time(router_process_open_fds{process="worker"}[1m]) > 1')
        use(router)
        prometheus.wait_for("router_published_messages_total == 6")
        prometheus.wait_for("increase(router_delivered_messages_total[1m]) > 0")
        yield prometheus


@pytest.mark.system
@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_alert_is_about_metrics_that_there_are(watched: Prometheus, alert: dict[str, Any]) -> None:
    assert watched.ask(alert["expr"]) == [], "the alert fires for a router that is well"
    for name, matchers in SELECTOR.findall(alert["expr"]):
        labels = [f'{label}!=""' for label in LABEL.findall(matchers)]
        assert watched.ask(f"{name}{{{','.join(labels)}}}"), f"nothing is called {name}{labels}"


@pytest.mark.system
@pytest.mark.parametrize(("title", "expression"), panels())
def test_panel_shows_something_of_a_live_router(
    watched: Prometheus, title: str, expression: str
) -> None:
    assert watched.wait_for(expression), title


@pytest.mark.system
def test_backlog_is_that_of_the_group(watched: Prometheus) -> None:
    (series,) = watched.ask("router_group_backlog_messages")
    assert series["metric"]["topic"] == "persistent://public/default/orders"
    assert series["metric"]["group"] == "g1"
    watched.wait_for('router_group_backlog_messages{group="g1"} == 4')
    watched.wait_for("router_backlog_messages == 4")


@pytest.mark.system
@pytest.mark.parametrize(("name", "selector"), mapped())
def test_metric_of_opentelemetry_has_its_own_here(
    watched: Prometheus, name: str, selector: str
) -> None:
    known = {
        value
        for module in (messaging_metrics, http_metrics, stable, process_metrics)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    assert name in known
    metric, brace, labels = selector.partition("{")
    found = [f"{stem}{brace}{labels}" for stem in (metric, f"{metric}_count")]
    assert any(watched.ask(expression) for expression in found), selector


def test_metrics_of_messaging_are_all_mapped() -> None:
    current = {
        value
        for name, value in vars(messaging_metrics).items()
        if name.startswith(("MESSAGING_CLIENT_", "MESSAGING_PROCESS_")) and isinstance(value, str)
    }
    # Older names of the same.
    current -= {"messaging.client.published.messages", "messaging.process.messages"}
    assert current <= {name for name, _ in mapped()}


def linted(page: bytes) -> str:
    """Return what promtool has to say about a page of metrics."""
    maven.require("promtool")
    done = subprocess.run(
        [str(maven.program("promtool")), "check", "metrics"],
        input=page,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return (done.stdout + done.stderr).decode() or f"status {done.returncode}"


@pytest.mark.system
def test_names_of_a_live_router_follow_the_rules_of_prometheus(router: Stack) -> None:
    with urllib.request.urlopen(f"{router.url}/metrics", timeout=30) as answer:
        assert linted(answer.read()) == "status 0"


def test_names_of_all_metrics_follow_the_rules_of_prometheus() -> None:
    metrics = Metrics()
    for family in FAMILIES:
        labels = dict.fromkeys(family.labels, "x")
        if family.kind == "counter":
            metrics.inc(family.name, 1, **labels)
        elif family.kind == "gauge":
            metrics.set_gauge(family.name, 1, **labels)
        else:
            metrics.observe(family.name, 1, **labels)
    drained = metrics.drain()
    page = render([*drained.counters, *drained.gauges])
    assert all(f"\n{family.name}" in page for family in FAMILIES)
    assert linted(page.encode()) == "status 0"
    assert "abbreviated" in linted(
        b"# HELP router_wait_ms x\n# TYPE router_wait_ms gauge\nrouter_wait_ms 1\n"
    )


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    maven.require("promtool")
    cases = [
        {
            "interval": "1m",
            "input_series": [
                {"series": series, "values": values} for series, values in given.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": "90m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for name, given in BAD.items()
    ]
    assert set(BAD) == {rule["alert"] for rule in alerts()}
    (tmp_path / "alerts.yaml").write_text((FOLDER / "alerts.yaml").read_text())
    (tmp_path / "cases.yaml").write_text(
        yaml.safe_dump({"rule_files": ["alerts.yaml"], "tests": cases})
    )
    done = run(str(maven.program("promtool")), "test", "rules", "cases.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_are_what_prometheus_reads() -> None:
    maven.require("promtool")
    done = run(str(maven.program("promtool")), "check", "config", str(FOLDER / "prometheus.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


# For each alert what a router in trouble counts, a value a minute.
BAD: dict[str, dict[str, str]] = {
    "RouterDown": {'up{job="router"}': "0x90"},
    "RouterErrors": {
        'router_http_requests_total{status="503",route="/events/<topic>"}': "0+60x90",
        'router_http_requests_total{status="200",route="/events/<topic>"}': "0+600x90",
    },
    "RouterBrokerRestarts": {"router_broker_start_time_seconds": "1+1x90"},
    "RouterDiskNearlyFull": {
        "router_disk_free_bytes": "200x90",
        "router_disk_reserve_bytes": "64x90",
    },
    "RouterDiskFull": {"router_disk_full": "1x90"},
    "RouterDiskFillsUp": {
        "router_disk_free_bytes": "100000-500x90",
        "router_disk_reserve_bytes": "64x90",
        "router_disk_size_bytes": "200000x90",
    },
    "RouterSyncSlow": {
        'router_broker_sync_seconds_bucket{le="0.5"}': "0+90x90",
        'router_broker_sync_seconds_bucket{le="1.0"}': "0+100x90",
        'router_broker_sync_seconds_bucket{le="+Inf"}': "0+100x90",
    },
    "RouterDamagedEntries": {"router_broker_damaged_entries_total": "0+1x90"},
    "RouterBackupOld": {"router_backup_time_seconds": "-200000x90"},
    "RouterTransactionOpen": {"router_transactions_oldest_seconds": "400x90"},
    "RouterBacklogGrows": {'router_group_backlog_messages{topic="t",group="g"}': "200000+100x90"},
    "RouterPollsSlow": {
        'router_poll_service_seconds_bucket{le="1.0"}': "0+90x90",
        'router_poll_service_seconds_bucket{le="2.5"}': "0+100x90",
        'router_poll_service_seconds_bucket{le="+Inf"}': "0+100x90",
    },
    "RouterBrokerBusy": {'router_process_cpu_seconds_total{process="broker"}': "0+57x90"},
    "RouterWorkersBusy": {
        'router_process_cpu_seconds_total{process="worker"}': "0+114x90",
        'router_processes{process="worker"}': "2x90",
    },
    "RouterLoginsRefused": {'router_logins_total{outcome="refused"}': "0+120x90"},
    "RouterOpenFiles": {
        'router_process_open_fds{process="broker"}': "900x90",
        'router_process_max_fds{process="broker"}': "1000x90",
    },
    "RouterCoordinationLost": {"router_broker_coordination_losses_total": "0+1x90"},
}
