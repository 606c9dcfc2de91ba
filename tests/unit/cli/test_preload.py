"""What the workers inherit was imported before gevent patched them: it must not matter."""

from __future__ import annotations

import subprocess
import sys

# Locks that are never held over a wait, and click's context, which workers do not use.
HARMLESS = {
    "click.globals.local",
    "jinja2.utils.Lock",
    "router.services.appending.RLock",
    "router.services.memory_budget.RLock",
    "werkzeug.routing.map.Lock",
}

SCRIPT = """
import importlib, sys
import gunicorn.arbiter, router.web.worker.llhttp
from router.cli.front import PRELOADED
for name in PRELOADED:
    importlib.import_module(name)
loaded = dict(sys.modules)
from gevent import monkey
monkey.patch_all()
plain = {id(v) for names in monkey.saved.values() for v in names.values() if callable(v)}
for name, module in loaded.items():
    if name.partition(".")[0] not in sys.stdlib_module_names | {"gevent"}:
        for key, value in list(vars(module).items()):
            if id(value) in plain:
                print(f"{name}.{key}")
"""


def test_preloaded_modules_keep_nothing_that_gevent_replaces() -> None:
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=True
    ).stdout
    assert set(output.split()) <= HARMLESS
