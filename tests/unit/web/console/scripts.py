"""The console's modules without a browser: their functions in the engine that Chromium has."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

from py_mini_racer import MiniRacer

# What every browser has, and the bare engine has not.
_BROWSER = """
globalThis.atob = (text) => {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  let bits = "";
  for (const one of text.replace(/=+$/, "")) {
    bits += digits.indexOf(one).toString(2).padStart(6, "0");
  }
  return (bits.match(/.{8}/g) ?? []).map((byte) => String.fromCharCode(parseInt(byte, 2))).join("");
};
globalThis.TextEncoder = class {
  encode(text) {
    return Uint8Array.from(unescape(encodeURIComponent(text)), (one) => one.charCodeAt(0));
  }
};
"""


class Module:
    """One module of `static/`, which imports none."""

    def __init__(self, name: str) -> None:
        self._engine = MiniRacer()
        self._engine.eval(_BROWSER)
        source = (resources.files("router.web.console") / "static" / name).read_text("utf-8")
        assert "import " not in re.sub(r"//.*", "", source)
        self._engine.eval(re.sub(r"^export ", "", source, flags=re.MULTILINE))

    def close(self) -> None:
        """End the engine, whose threads would keep the process from ending."""
        self._engine.close()

    def value(self, expression: str, **names: Any) -> Any:
        """Return what an expression of these names is, as JSON has it."""
        given = "".join(f"const {name} = {json.dumps(one)};" for name, one in names.items())
        script = f"(() => {{{given} return JSON.stringify({expression});}})()"
        return json.loads(str(self._engine.eval(script)))
