"""The catalogue of failures: total, in sentences, and what `router explain` prints of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from router.cli import main
from router.errors import by_code
from router.errors.catalogue import ADVICE, explain
from router.web.dmaap.errors import TABLE


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["explain", *words])


def test_every_failure_has_its_advice() -> None:
    assert ADVICE.keys() == by_code().keys()


@pytest.mark.parametrize("code", ADVICE)
def test_advice_is_in_sentences(code: str) -> None:
    found = explain(code)
    for text in (found.sentence, found.cause, found.remedy):
        assert text.endswith(".")
        assert " " in text
    assert found.page == f"docs/errors.md#{code}"


def test_explain_prints_cause_and_remedy() -> None:
    result = run("topic-held")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "topic-held: A producer has exclusive access to the topic; others can publish when it is"
        " closed.",
        "Likely cause: A Pulsar client opened an exclusive producer.",
        "What to do:   Stop the producer that has the topic for itself.",
        "A repeat of the request may help.",
        "More:         docs/errors.md#topic-held",
    ]


def test_explain_prints_json() -> None:
    assert json.loads(run("bad-name", "--json").stdout) == explain("bad-name")._asdict()
    assert [one["code"] for one in json.loads(run("--json").stdout)] == list(ADVICE)


def test_explain_lists_all_codes() -> None:
    assert [line.partition(" ")[0] for line in run().stdout.splitlines()] == list(ADVICE)


def test_explain_suggests_a_code_that_is_close() -> None:
    result = run("topic-not-fund")
    assert result.exit_code == 2
    assert "Did you mean topic-not-found" in result.stderr


def test_explain_takes_the_numbers_of_an_answer() -> None:
    result = run("3001")
    assert result.exit_code == 0
    codes = [part.partition(":")[0] for part in result.stdout.split("\n\n")]
    assert codes == ["batch-too-large", "topic-not-found", "namespace-not-found", "path-not-found"]
    found = {one["code"] for one in json.loads(run("413", "--json").stdout)}
    assert found >= {code for code, row in TABLE.items() if row.status == 413}
    assert 'there is no code "9999"' in run("9999").stderr


def test_explain_loads_no_server() -> None:
    program = (
        "import sys\n"
        "from router.cli import main\n"
        "main(['explain', 'internal'], standalone_mode=False)\n"
        "sys.exit(bool({'flask', 'gevent', 'asyncio', 'orjson'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
