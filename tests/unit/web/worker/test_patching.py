"""gevent's patching of a worker: plugins are called, and looked for once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from importlib import metadata
from gevent import monkey
from router.web.worker.llhttp import entry_points_read_once

read, original = [], metadata.Distribution.entry_points.fget
metadata.Distribution.entry_points = property(lambda d: read.append(d.name) or original(d))
before = metadata.entry_points
with entry_points_read_once():
    monkey.patch_all()
print(read.count("growing-plugin"), monkey.is_module_patched("socket"))
print(metadata.entry_points is before)
"""


def test_plugins_of_gevent_are_called_and_their_entry_points_read_once(tmp_path: Path) -> None:
    """The oracle is gevent's own protocol of plugins: a distribution with a subscriber."""
    installed = tmp_path / "growing_plugin-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: growing-plugin\nVersion: 1.0\n"
    )
    group = "gevent.plugins.monkey.did_patch_all"
    (installed / "entry_points.txt").write_text(f"[{group}]\nplugin = growing_plugin:called\n")
    (tmp_path / "growing_plugin.py").write_text(
        "def called(event):\n    print('called', type(event).__name__)\n"
    )
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.splitlines() == ["called GeventDidPatchAllEvent", "1 True", "True"]
