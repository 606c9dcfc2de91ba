"""Rules and templates compiled once for all applications of a test run.

A process that serves compiles both once. These tests make hundreds of applications, and without
this would spend most of their time on compiling the same rules and templates again.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import pytest
from jinja2 import Environment
from werkzeug.routing.rules import Rule

_COMPILED = ("_parts", "_trace", "_converters", "arguments")


def share(patch: pytest.MonkeyPatch) -> None:
    """Share what is compiled, as long as the patch is in force."""
    _share_rules(patch)
    _share_templates(patch)


def _share_rules(patch: pytest.MonkeyPatch) -> None:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    compile_rule = Rule.compile

    def compiled(rule: Rule) -> None:
        key = (type(rule), rule.rule, rule.subdomain, rule.host, rule.merge_slashes)
        if (shared := found.get(key)) is None:
            compile_rule(rule)
            if rule.defaults is None:
                found[key] = {name: getattr(rule, name) for name in _COMPILED}
            return
        # The arguments are a set that Werkzeug adds to; the rest is read only.
        vars(rule).update(shared, arguments=set(shared["arguments"]))
        vars(rule)["_build"] = rule._compile_builder(False).__get__(rule, None)
        vars(rule)["_build_unknown"] = rule._compile_builder(True).__get__(rule, None)

    patch.setattr(Rule, "compile", compiled)


def _share_templates(patch: pytest.MonkeyPatch) -> None:
    found: dict[tuple[str, str | None], CodeType] = {}
    compile_template: Any = Environment.compile

    def compiled(self: Environment, source: str, name: str | None, filename: str | None) -> Any:
        if (source, name) not in found:
            found[source, name] = compile_template(self, source, name, filename)
        return found[source, name]

    patch.setattr(Environment, "compile", compiled)
