"""What a power cut may leave of a router's data folder: no promise is broken.

A failure names the seed and the number of the image, from which and the recording, kept then, the
image is built again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.crash_images import flips
from tests.crash_images.making import Recording, record
from tests.crash_images.trying import plan, run
from tests.histories.running import mounted

pytestmark = [pytest.mark.system, pytest.mark.slow]

IMAGES = int(os.environ.get("SOAK_CRASH_IMAGES", "2000"))
SEED = os.environ.get("CRASH_IMAGES_SEED", "1")
IMAGES_OF_A_RECORDING = 12_000
"""Then another one is made."""
FLIPS = int(os.environ.get("SOAK_BIT_FLIPS", "400"))
KEPT = Path(".cache/crash_images").resolve()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return record(tmp_path_factory.mktemp("recording"), SEED)


def test_the_recording_has_all_that_was_written(recording: Recording) -> None:
    differing = {
        path
        for path in recording.left.keys() | recording.replayed().keys()
        if recording.left.get(path) != recording.replayed().get(path)
    }
    assert not differing


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Drop what a store logs of a journal that was cut: thousands of them are."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()


@pytest.fixture
def image_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory: thousands of images are written, opened and removed."""
    with mounted(tmp_path / "memory"):
        yield tmp_path / "memory" / "image"


@pytest.mark.timeout(600 + IMAGES // 2)
def test_what_a_crash_leaves_holds_all_that_was_acknowledged(
    recording: Recording, tmp_path: Path, image_folder: Path
) -> None:
    for first in range(0, IMAGES, IMAGES_OF_A_RECORDING):
        seed = f"{SEED}-{first}"
        if first:
            folder = tmp_path / seed
            folder.mkdir()
            recording = record(folder, seed)
        last = min(first + IMAGES_OF_A_RECORDING, IMAGES)
        trials = plan(recording, seed, range(first, last))
        failures = asyncio.run(run(recording, trials, image_folder))
        if failures:
            KEPT.mkdir(parents=True, exist_ok=True)
            recording.write(KEPT / f"{seed}.recording")
        assert not failures, "\n".join(map(str, failures[:20]))


@pytest.mark.timeout(600 + FLIPS // 4)
def test_a_bit_that_flips_in_a_crashed_folder_is_never_served_as_data(
    recording: Recording, image_folder: Path
) -> None:
    images = [flips.killed(recording, SEED), flips.stopped(recording)]
    false = []
    for image in images:
        planned = flips.plan(image, SEED, range(FLIPS // len(images)))
        verdicts = asyncio.run(flips.run(image, planned, image_folder))
        false += [one for one in verdicts if one.outcome is flips.Outcome.FALSE]
    assert not false, "\n".join(str(one)[:2000] for one in false[:20])
