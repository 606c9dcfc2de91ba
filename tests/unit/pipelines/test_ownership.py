"""A checkpoint belongs to one pipeline: another one is refused before it reads its offsets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router import settings as all_settings
from router.pipelines.declaration import Pipeline
from router.pipelines.ownership import OWNER, check_owner, own
from router.pipelines.reading import DeclarationError
from router.pipelines.run import check
from tests.unit.pipelines.declared import read


def pipeline(name: str, checkpoint: str) -> Pipeline:
    return replace(read(), name=name, checkpoint=checkpoint)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_checkpoint_of_another_pipeline_is_refused(folder: Path, scheme: str) -> None:
    mine = pipeline("mine", f"{scheme}{folder}")
    check_owner(mine)
    own(mine, folder)
    own(mine, folder)
    check_owner(mine)
    settings = all_settings.load(None, {}, {"backend.url": "memory"})
    other = pipeline("other", f"{scheme}{folder}/")
    with pytest.raises(
        DeclarationError, match=r"large.toml:2: .*that of the pipeline mine"
    ) as said:
        check(other, settings, topics=False)
    assert str(folder / OWNER) in str(said.value)
    with pytest.raises(DeclarationError):
        own(other, folder)
    # As the sentence says, for the same pipeline under another name.
    (folder / OWNER).unlink()
    own(other, folder)
    check_owner(other)


def test_checkpoint_with_a_damaged_note_is_refused(folder: Path) -> None:
    (folder / OWNER).write_text("{")
    with pytest.raises(DeclarationError, match="another pipeline"):
        check_owner(pipeline("mine", str(folder)))
