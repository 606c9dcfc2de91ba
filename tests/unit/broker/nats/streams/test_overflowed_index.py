"""A stream with more subjects than the index may hold: answers are complete, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import PULSAR_FORMAT
from router.model import Message
from router.settings import load
from tests.unit.broker.nats.serving import Serving, serving

SETTINGS = load(None, {}, {"nats.max_subjects": "5"})
MESSAGES = 300
SUBJECTS = 30
TEN = MESSAGES // SUBJECTS


def check(folder: Path, test: Callable[[Serving], Awaitable[None]]) -> None:
    """Run a test on a stream in which another dialect stored more subjects than are allowed."""

    async def run() -> None:
        async with serving(folder, settings=SETTINGS) as served:
            await served.stream()
            stream = served.server.streams.find("S")
            for number in range(MESSAGES):
                named = {"Nats-Subject": f"s.{number % SUBJECTS}"}
                message = Message(value=b"%d" % number, properties=named)
                payload = ENTRY_FORMATS[PULSAR_FORMAT].from_messages([message], 0)
                stream.ledger.append(payload, PULSAR_FORMAT, 1, 1, lambda _: None)
            await served.stored()
            await stream.log.catch_up()
            assert stream.log.index is not None
            assert stream.log.index.overflowed
            await test(served)

    asyncio.run(run())


@pytest.mark.parametrize("waits", [False, True])
def test_consumers_of_one_subject_get_all_of_it(tmp_path: Path, waits: bool) -> None:
    async def test(served: Serving) -> None:
        made = await served.consumer("c", filter_subject="s.29")
        assert made["num_pending"] == TEN
        batches = [1] * TEN if waits else [TEN]
        found = [one for batch in batches for one in await served.pull("c", batch)]
        assert [int(one.payload) for one in found] == list(range(29, MESSAGES, SUBJECTS))
        assert (await served.info("c"))["num_pending"] == 0

    check(tmp_path, test)


def test_messages_are_found_by_subject(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        last = await served.call("STREAM.MSG.GET.S", last_by_subj="s.29")
        assert last["message"]["seq"] == MESSAGES
        following = await served.call("STREAM.MSG.GET.S", seq=31, next_by_subj="s.29")
        assert following["message"]["seq"] == 60
        wildcard = await served.call("STREAM.MSG.GET.S", last_by_subj="s.*")
        assert wildcard["error"]["err_code"] == 10117

    check(tmp_path, test)


def test_a_subject_is_purged_whole(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        purged = await served.call("STREAM.PURGE.S", filter="s.29")
        assert purged["purged"] == TEN
        gone = await served.call("STREAM.MSG.GET.S", last_by_subj="s.29")
        assert gone["error"]["err_code"] == 10037

    check(tmp_path, test)
