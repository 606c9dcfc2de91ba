"""Histories of two nodes over a real Kafka and ZooKeeper under faults: leases are linearizable."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.histories.judging import ILLEGAL, LEGAL, UNDECIDED, judge
from tests.histories.leases import record_leases
from tests.servers.proxy import TcpProxy
from tests.system.nodes import Cluster

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.java]

HISTORIES = -(-int(os.environ.get("SOAK_HISTORIES", "50")) // 25)
SEED = os.environ.get("HISTORIES_SEED", "1")
STEPS = 25
FAULTS = 2
MAX_UNDECIDED = 1 + HISTORIES // 20
KEPT = Path(".cache/histories").resolve()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("leases"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.mark.timeout(240 + 60 * HISTORIES)
def test_histories_of_two_nodes_under_faults_are_linearizable(cluster: Cluster) -> None:
    verdicts: Counter[str] = Counter()
    folders: list[str] = []
    with ExitStack() as owned:
        clients = [
            owned.enter_context(TcpProxy(f"127.0.0.1:{node.port}")) for node in cluster.nodes
        ]
        for number in range(HISTORIES):
            seed = f"{SEED}-{number}"
            history, struck = record_leases(cluster, clients, seed, faults=FAULTS, steps=STEPS)
            verdict = judge(history)
            verdicts[verdict] += 1
            if verdict != LEGAL:
                folder = KEPT / f"{seed}-{history.name}"
                folder.mkdir(parents=True, exist_ok=True)
                history.write(folder / "history.jsonl")
                judge(history, folder / "picture.html")
                (folder / "faults.txt").write_text("\n".join(struck) + "\n")
                for place, node in enumerate(cluster.nodes):
                    log = (node.folder / "serve.log").read_text()
                    (folder / f"serve-{place}.log").write_text(log)
                folders.append(str(folder))
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{SEED}-leases.json").write_text(json.dumps(verdicts))
    assert not verdicts[ILLEGAL], f"{dict(verdicts)}: {folders}"
    assert verdicts[UNDECIDED] <= MAX_UNDECIDED, f"{dict(verdicts)}: {folders}"
