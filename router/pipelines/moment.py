"""Where several readings of one source begin that begin at the latest message: at one moment.

Each sink reads the source by itself, and their queries start one after the other. If each took what
is latest when it starts, a bad record that came between would be in neither table nor dead letters.
So `latest` becomes the time of the pipeline's first run, which its checkpoint keeps: also for a
sink that a killed run had not come to, and for one that is declared later.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from router.errors import SettingError
from router.pipelines.declaration import Pipeline, SourceSpec
from router.pipelines.sinks.staging import Disk

FILE: Final = "starting.json"


def together(pipeline: Pipeline, source: SourceSpec, folder: Path, now_ms: int) -> SourceSpec:
    """Return a source that begins alike for all sinks; `folder` keeps the time.

    `now_ms` is the time of day in ms since 1970. Raises SettingError.
    """
    readings = len(pipeline.sinks) + (pipeline.bad_records == "dlq")
    if source.starting != "latest" or readings < 2:
        return source
    file = folder / FILE
    try:
        moment = int(json.loads(file.read_bytes())["ms"])
    except FileNotFoundError:
        moment = now_ms
        folder.mkdir(parents=True, exist_ok=True)
        Disk().write(file, json.dumps({"ms": moment}).encode())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{file} does not tell where the pipeline began: {error}.") from error
    return replace(source, starting=str(moment))
