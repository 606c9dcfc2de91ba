"""deploy/kubernetes: manifests that Kubernetes' own schemas accept, and that belong together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.app import create_app
from router.cli import broker_child, serve
from router.settings import load
from tests.deploy.tools import DEPLOY, run

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VERSIONS = ("1.30", "1.37")  # the oldest that is tried, and the newest that the checker knows
names = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def objects(file: Path) -> list[dict[str, Any]]:
    """Return the objects of a file."""
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def one(file: Path, *kinds: str) -> dict[str, Any]:
    """Return the object of that kind."""
    found = [item for item in objects(file) if item["kind"] in kinds]
    assert len(found) == 1, kinds
    return found[0]


def workload(file: Path) -> dict[str, Any]:
    """Return the Deployment or StatefulSet."""
    return one(file, "Deployment", "StatefulSet")


def pod(file: Path) -> dict[str, Any]:
    """Return the pod of the workload."""
    found: dict[str, Any] = workload(file)["spec"]["template"]["spec"]
    return found


def container(file: Path) -> dict[str, Any]:
    """Return its one container."""
    (found,) = pod(file)["containers"]
    assert isinstance(found, dict)
    return found


def validate(file: Path, version: str) -> tuple[int, str]:
    """Compare a file with the schemas of a version of Kubernetes; unknown fields are refused."""
    checker = Path(sys.executable).parent / "kubernetes-validate"
    done = run(checker, "--strict", "-k", version, file)
    return done.returncode, done.stdout + done.stderr


def test_there_is_a_set_for_several_nodes_and_one_for_a_single_node() -> None:
    kinds = {file.name: workload(file)["kind"] for file in FILES}
    assert kinds == {"several-nodes.yaml": "Deployment", "single-node.yaml": "StatefulSet"}


@names
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_follow_the_schemas(file: Path, version: str) -> None:
    status, said = validate(file, version)
    assert status == 0, said


@names
def test_validation_refuses_a_manifest_with_a_mistake(file: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(file.read_text(encoding="utf-8").replace("livenessProbe", "livenesProbe"))
    status, said = validate(wrong, VERSIONS[-1])
    assert status != 0
    assert "livenesProbe" in said


@names
def test_objects_select_the_pods_of_the_workload(file: Path) -> None:
    labels = workload(file)["spec"]["template"]["metadata"]["labels"]
    assert workload(file)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert one(file, "Service")["spec"]["selector"].items() <= labels.items()


def test_budget_keeps_all_nodes_but_one() -> None:
    several = DEPLOY / "kubernetes" / "several-nodes.yaml"
    budget = one(several, "PodDisruptionBudget")["spec"]
    labels = workload(several)["spec"]["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] == 1
    assert workload(several)["spec"]["replicas"] >= 2


@names
def test_probes_ask_for_routes_that_exist(file: Path) -> None:
    app = create_app(load(None, {}, {"backend.url": "memory"}))
    client = app.test_client()
    paths = {
        name: container(file)[name]["httpGet"]["path"]
        for name in container(file)
        if "Probe" in name
    }
    answers = {path: client.get(path).status_code for path in paths.values()}
    app.extensions["router.close"]()
    assert paths["livenessProbe"] == "/health"
    assert paths["readinessProbe"].startswith("/ready")
    assert set(answers.values()) == {200}


@names
def test_ports_fit_together(file: Path) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(file)["ports"]}
    assert ports["http"] == load(None, {}).number("server.port")
    assert [p["targetPort"] for p in one(file, "Service")["spec"]["ports"]] == ["http"]


@names
def test_pods_have_the_time_to_stop(file: Path) -> None:
    command = container(file)["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    front = load(None, {}).seconds("server.graceful_timeout") + serve.MARGIN_SECONDS
    needed = float(command[1]) + front + broker_child.STOP_SECONDS + 5
    assert pod(file)["terminationGracePeriodSeconds"] >= needed


@names
def test_no_variable_of_kubernetes_looks_like_a_setting(file: Path) -> None:
    assert pod(file)["enableServiceLinks"] is False
    assert not one(file, "Service")["metadata"]["name"].startswith("router")


@names
def test_volumes_that_are_mounted_exist(file: Path) -> None:
    volumes = {volume["name"] for volume in pod(file)["volumes"]}
    volumes |= {
        v["metadata"]["name"] for v in workload(file)["spec"].get("volumeClaimTemplates", [])
    }
    assert {mount["name"] for mount in container(file)["volumeMounts"]} == volumes


@names
def test_files_that_settings_name_are_mounted(file: Path, tmp_path: Path) -> None:
    folders = {mount["mountPath"]: mount["name"] for mount in container(file)["volumeMounts"]}
    (configured,) = [v["value"] for v in container(file)["env"] if v["name"] == "ROUTER_CONFIG"]
    text = one(file, "ConfigMap")["data"][Path(configured).name]
    assert folders[str(Path(configured).parent)] == "config"
    (tmp_path / "router.cfg").write_text(text)
    settings = load(tmp_path / "router.cfg", {})
    secrets = [item for item in objects(file) if item["kind"] == "Secret"]
    for name in ("auth.users", "auth.permissions"):
        place = Path(settings.text(name))
        assert folders[str(place.parent)] == "secret"
        assert place.name in secrets[0]["stringData"]


@names
def test_users_as_shipped_let_nobody_in(file: Path, tmp_path: Path) -> None:
    secret = next(item for item in objects(file) if item["kind"] == "Secret")["stringData"]
    for name in ("users", "permissions"):
        (tmp_path / name).write_text(secret[name])
    flags = {"backend.url": "memory", "auth.users": str(tmp_path / "users")}
    app = create_app(load(None, {}, flags | {"auth.permissions": str(tmp_path / "permissions")}))
    client = app.test_client()
    answers = {client.get(path).status_code for path in ("/topics", "/events/t/g/c?timeout=0")}
    ready = client.get("/ready").status_code
    app.extensions["router.close"]()
    assert (answers, ready) == ({401}, 200)


@names
def test_maps_and_secrets_that_are_used_exist(file: Path) -> None:
    there = {
        (item["kind"], item["metadata"]["name"])
        for item in objects(file)
        if item["kind"] in {"ConfigMap", "Secret"}
    }
    used = {("ConfigMap", v["configMap"]["name"]) for v in pod(file)["volumes"] if "configMap" in v}
    used |= {("Secret", v["secret"]["secretName"]) for v in pod(file)["volumes"] if "secret" in v}
    used |= {("Secret", e["secretRef"]["name"]) for e in container(file).get("envFrom", [])}
    assert used == there
