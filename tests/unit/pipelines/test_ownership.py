"""A checkpoint belongs to one pipeline: another one is refused before it reads its offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from router import settings as all_settings
from router.pipelines.declaration import Pipeline
from router.pipelines.ownership import OWNER, check_owner, own
from router.pipelines.reading import DeclarationError
from router.pipelines.run import RunOptions, check, placed, run
from tests.unit.pipelines.declared import GOOD, read


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
        DeclarationError, match=r"large.toml:2:14: .*that of the pipeline mine"
    ) as said:
        check(other, settings, topics=False)
    assert str(folder / OWNER) in str(said.value)
    with pytest.raises(DeclarationError):
        own(other, folder)
    with pytest.raises(DeclarationError):
        run(other, settings, RunOptions())
    # As the sentence says, for the same pipeline under another name.
    (folder / OWNER).unlink()
    own(other, folder)
    check_owner(other)


def test_checkpoint_with_a_damaged_note_is_refused(folder: Path) -> None:
    (folder / OWNER).write_text("{")
    with pytest.raises(DeclarationError, match="another pipeline"):
        check_owner(pipeline("mine", str(folder)))


def begun(folder: Path, sink: str) -> None:
    (folder / sink / "offsets").mkdir(parents=True)
    (folder / sink / "offsets" / "0").touch()


def moved(pipeline: Pipeline) -> Pipeline:
    first, *others = pipeline.sinks
    return replace(pipeline, sinks=(replace(first, path="elsewhere"), *others))


def other_store(pipeline: Pipeline) -> Pipeline:
    return replace(pipeline, source=replace(pipeline.source, url="pulsar://other:6650"))


def counted(old: str, new: str) -> Callable[[Pipeline], Pipeline]:
    def change(pipeline: Pipeline) -> Pipeline:
        text = GOOD.replace(old, new, 1)
        assert text != GOOD
        return replace(pipeline, steps=read(text).steps)

    return change


@pytest.mark.parametrize(
    ("sink", "change", "line", "words"),
    [
        (
            "files",
            moved,
            22,
            "sink files has written to parquet .*/out, .* parquet elsewhere: .*stay",
        ),
        ("files", other_store, 2, "has positions of /.*data, .*source is pulsar://other:6650 now"),
        (
            "topic",
            counted("count(*)", "max(id)"),
            29,
            r"COUNT\(\*\) by .*cannot become minutes: MAX",
        ),
        ("topic", counted("'1 minute'", "'2 minutes'"), 29, "'1 minute'.*become.*'2 minutes'"),
        (
            "topic",
            counted("GROUP BY 1", "GROUP BY 1, id"),
            29,
            r"start, id \(_publish_time .*id BI",
        ),
        ("topic", counted("GROUP BY 1", "JOIN large ON true GROUP BY 1"), 29, "JOIN large ON TRUE"),
        (
            "topic",
            counted("SELECT window", "SELECT DISTINCT window"),
            29,
            "minutes: distinct window",
        ),
    ],
)
def test_what_has_begun_cannot_go_on_as_another_one(
    folder: Path, sink: str, change: Callable[[Pipeline], Pipeline], line: int, words: str
) -> None:
    mine = placed(pipeline("large", str(folder)), all_settings.load(None, {}, {}))
    own(mine, folder)
    changed = change(mine)
    check_owner(changed)
    begun(folder, sink)
    with pytest.raises(DeclarationError, match=rf"large.toml:{line}:(1|14): .*{words}") as said:
        check_owner(changed)
    assert str(folder / OWNER) in str(said.value)
    # A sink that is left out and comes back is known.
    own(replace(mine, sinks=()), folder)
    with pytest.raises(DeclarationError):
        own(changed, folder)
    own(mine, folder)


def test_filters_names_of_results_and_new_sinks_may_change(folder: Path) -> None:
    mine = placed(pipeline("large", str(folder)), all_settings.load(None, {}, {}))
    own(mine, folder)
    begun(folder, "topic")
    begun(folder, "files")
    text = GOOD.replace("count(*) AS n FROM records", "count(*) AS m FROM records WHERE id > 1")
    changed = replace(mine, steps=read(text.replace("amount * 2", "amount * 3")).steps)
    own(replace(changed, sinks=(*changed.sinks, replace(changed.sinks[0], name="new"))), folder)
