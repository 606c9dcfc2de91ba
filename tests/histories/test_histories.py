"""Histories of a running router under faults: every one is linearizable.

A failure names the folders where an illegal or undecided history, its picture, the faults and the
router's log are kept; the numbers of legal, illegal and undecided ones are kept beside it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.histories.judging import ILLEGAL, LEGAL, UNDECIDED, judge
from tests.histories.recording import History
from tests.histories.running import SCENARIOS, Router, record_round, running

pytestmark = [pytest.mark.system, pytest.mark.slow]

HISTORIES = int(os.environ.get("SOAK_HISTORIES", "50"))
SEED = os.environ.get("HISTORIES_SEED", "1")
ROUNDS = -(-HISTORIES // len(SCENARIOS))
ROUNDS_OF_A_ROUTER = 50
"""Then one with an empty folder takes over."""
MAX_UNDECIDED = HISTORIES // 50
"""The checker has 20 seconds for each, of which it needs less than one on an idle machine."""
KEPT = Path(".cache/histories").resolve()


def kept(history: History, struck: list[str], seed: str, router: Router) -> Path:
    """Keep a history that is not legal with what is needed to understand it; return the folder."""
    folder = KEPT / f"{seed}-{history.name}"
    folder.mkdir(parents=True, exist_ok=True)
    history.write(folder / "history.jsonl")
    judge(history, folder / "picture.html")
    (folder / "faults.txt").write_text("\n".join(struck) + "\n")
    shutil.copy(router.stack.folder / "serve.log", folder / "serve.log")
    return folder


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_histories_under_faults_are_linearizable(tmp_path: Path) -> None:
    verdicts: Counter[str] = Counter()
    folders: list[str] = []
    for first in range(0, ROUNDS, ROUNDS_OF_A_ROUTER):
        folder = tmp_path / str(first)
        folder.mkdir()
        with running(folder) as router:
            for number in range(first, min(first + ROUNDS_OF_A_ROUTER, ROUNDS)):
                seed = f"{SEED}-{number}"
                count = min(len(SCENARIOS), HISTORIES - number * len(SCENARIOS))
                chosen = random.Random(seed).sample(SCENARIOS, count)
                histories, struck = record_round(router, seed, chosen)
                for history in histories:
                    verdict = judge(history)
                    verdicts[verdict] += 1
                    if verdict != LEGAL:
                        folders.append(str(kept(history, struck, seed, router)))
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{SEED}.json").write_text(json.dumps(verdicts))
    assert not verdicts[ILLEGAL], f"{dict(verdicts)}: {folders}"
    assert verdicts[UNDECIDED] <= MAX_UNDECIDED, f"{dict(verdicts)}: {folders}"
