"""A replay that needs no declaration: an archive and a few words on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from router.errors import SettingError
from router.pipelines.declaration import JobSpec, Pipeline, SourceSpec
from router.pipelines.loading import NAME


def replay_of(name: str, archive: str, given: Mapping[str, object]) -> Pipeline:
    """Return the pipeline that replays an archive; `given` are more keys of the job.

    Its checkpoint is the one of its name below the folder of the node's data. Raises SettingError.
    """
    if not NAME.fullmatch(name):
        raise SettingError(f"a pipeline's name is 1 to 100 of a-z 0-9 . _ -, not {name!r}")
    options = {"archive": archive if "://" in archive else str(Path(archive).absolute()), **given}
    return Pipeline(
        name=name,
        source=SourceSpec(url=""),
        job=JobSpec("replay", options),
        file=Path("command line"),
        description=f"Replays {archive}.",
    )
