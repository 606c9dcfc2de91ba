"""Moving in from an original's ZooKeeper, and commands on ours: on a real one, as operators do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kazoo.client import KazooClient

from router.cli import main
from router.coordination import Lease
from router.coordination.zookeeper.names import escape, ids_path, lease_path, live_part
from tests.servers.zookeeper import Zookeeper
from tests.system.traffic import ask, started
from tests.unit.migration.trees import IV, KEY, golden

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]

K1, K2 = "K1abcdefghijklmn", "K2abcdefghijklmn"


@contextmanager
def chroot(zookeeper: Zookeeper) -> Iterator[tuple[Any, str]]:
    """Yield a client and the address of a tree of the test's own."""
    client = KazooClient(hosts=zookeeper.address)
    client.start(20)
    try:
        root = f"/{secrets.token_hex(6)}"
        yield client, f"{zookeeper.address}{root}"
    finally:
        client.stop()
        client.close()


def signature(key: str, date: str) -> str:
    """Sign a date as the original's clients do."""
    secret = f"secret of {key}".encode()
    digest = hmac.new(secret, date.encode(), hashlib.sha1).digest()
    return f"{key}:{base64.b64encode(digest).decode()}"


def signed(key: str) -> dict[str, str]:
    """Return the headers of a request that this key signed."""
    date = formatdate(usegmt=True)
    return {"X-CambriaAuth": signature(key, date), "X-CambriaDate": date}


def run(*command: str, **environ: str) -> Result:
    """Run a command; a broker that it needs is there already."""
    return CliRunner().invoke(main, command, env={"ROUTER_CONFIG": "", **environ})


def test_keys_of_an_original_serve_on_after_moving_in(zookeeper: Zookeeper, tmp_path: Path) -> None:
    properties = tmp_path / "MsgRtrApi.properties"
    with chroot(zookeeper) as (client, address), started(tmp_path, acl_enforce="true") as stack:
        root = address.partition("/")[2]
        for path, value in golden().items():
            client.create(f"/{root}/fe3c/cambria/config{path}", value, makepath=True)
        properties.write_text(
            f"config.zk.servers={address}\ncambria.secureConfig.key={KEY}\n"
            f"cambria.secureConfig.iv={IV}\n"
        )
        data = ["--data", str(tmp_path / "data")]
        migrate = ["migrate", "--properties", str(properties), *data]
        assert "6 new, 0 same, 0 differs, 2 cannot be read." in run(*migrate).output
        done = run(*migrate, "--apply").output
        assert "6 new" in done, "the dry run wrote"
        assert "secret of" not in done
        assert "0 new, 6 same" in run(*migrate, "--apply").output
        assert run("topics", "create", "listed", *data).exit_code == 0

        assert ask(stack, "GET", f"/apiKeys/{K1}").json["aux"]["email"] == "anna@example.org"
        described = ask(stack, "GET", "/topics/listed").json
        assert described["owner"] == K1
        assert described["readerAcl"]["users"] == [K2]
        body = b"hello"
        assert ask(stack, "POST", "/events/listed", body).status in {401, 403}
        assert ask(stack, "POST", "/events/listed", body, signed(K2)).status in {401, 403}
        assert ask(stack, "POST", "/events/listed", body, signed(K1)).status == 200
        read = "/events/listed/g/c?from=earliest&timeout=9000"
        assert ask(stack, "GET", read, headers=signed(K2)).json == ["hello"]


def test_zk_shows_and_takes_leases(zookeeper: Zookeeper) -> None:
    topic = "persistent://public/default/orders"
    with chroot(zookeeper) as (client, address):
        root = "/" + address.partition("/")[2]
        for partition, node in ((0, "node a"), (0, "node b"), (1, "node b")):
            path = root + lease_path(Lease(topic, "billing", partition))
            client.create(f"{path}/{escape(node)}@1-", ephemeral=True, sequence=True, makepath=True)
        path = f"{root}{ids_path(topic, 'billing')}/{live_part('c1', 'node a', '1')}"
        client.create(path, ephemeral=True, makepath=True)

        def zk(*arguments: str) -> str:
            result = run("zk", *arguments, "--zookeeper", address)
            assert result.exit_code == 0, result.output
            return result.output

        assert zk("show").splitlines() == [
            "orders, group billing",
            "  partition 0      node a; waiting: node b",
            "  partition 1      node b",
            "  consumer c1 is live on node a",
        ]
        assert zk("release", "orders", "billing", "0").startswith("Took 1 leases")
        [found] = json.loads(zk("show", "--json"))
        assert [part["holder"] for part in found["partitions"]] == ["node b", "node b"]
        assert zk("release", "orders", "billing").startswith("Took 2 leases")
        assert zk("show", "--topic", "absent").startswith("No node holds")


def test_commands_say_that_zookeeper_does_not_answer(free_port: int) -> None:
    where = ("--zookeeper", f"127.0.0.1:{free_port}")
    result = run("zk", "show", *where, ROUTER_BACKEND_TIMEOUT="300ms")
    assert result.exit_code == os.EX_UNAVAILABLE
    assert "does not answer within 0.3 s" in result.output
