"""The documentation is complete: settings, routes, errors and commands."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from router.app import create_app
from router.cli import COMMANDS, main
from router.errors import by_code
from router.settings import SETTINGS, load
from tests.docs.console import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_up_to_date(generator: ModuleType) -> None:
    for path, text in generator.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make generate`"


def test_every_setting_is_documented() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert [s.name for s in SETTINGS if f"| `{s.name}` |" not in page] == []


def test_every_error_is_documented() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert [code for code in by_code() if f"| `{code}` |" not in page] == []


def test_example_configuration_is_all_defaults_when_uncommented(tmp_path: Path) -> None:
    text = (ROOT / "config" / "router.cfg").read_text(encoding="utf-8")
    file = tmp_path / "router.cfg"
    file.write_text(re.sub(r"^#(\w+ =)", r"\1", text, flags=re.MULTILINE))
    assert set(re.findall(r"^(\w+) =", file.read_text(), re.MULTILINE))
    for value in (settings := load(file, {})).values.values():
        assert value.origin == str(file)
    assert settings.number("server.port") == 3904


def test_example_configuration_changes_nothing_as_it_is() -> None:
    values = load(ROOT / "config" / "router.cfg", {}).values.values()
    assert {value.origin for value in values} == {"default"}


ROUTES = ("http.md", "pulsar-rest.md", "console.md", "jetstream-http.md")


def test_every_route_is_documented() -> None:
    app = create_app(load(None, {}, {"backend.url": "memory"}))
    pages = [(DOCS / name).read_text(encoding="utf-8") for name in ROUTES]
    page = "".join(pages).replace("{id}", "{consumer}")
    routes = [
        f"`{method} {shown(rule.rule)}`"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    ]
    app.extensions["router.close"]()
    # On this store all of Pulsar's administration is refused, by one route for each root.
    routes = [route for route in routes if not route.endswith("/{rest}`")]
    assert len(routes) > 8
    assert [route for route in routes if route not in page] == []


def test_every_route_on_a_page_is_one_that_there_is(tmp_path: Path) -> None:
    given = {"data.dir": str(tmp_path), "broker.spawn": "false", "backend.timeout": "10ms"}
    app = create_app(load(None, {}, given))
    routes = {
        f"{method} {shown(rule.rule)}"
        for rule in app.url_map.iter_rules()
        for method in rule.methods or set()
    }
    app.extensions["router.close"]()
    for name in (*ROUTES, "pulsar-admin.md"):
        page = (DOCS / name).read_text(encoding="utf-8").replace("{id}", "{consumer}")
        told = re.findall(r"`((?:GET|PUT|POST|PATCH|DELETE) /[^`? ]*?)/?(?:\?[^`]*)?`", page)
        assert len(told) > 8
        assert [route for route in told if route not in routes] == [], name


def test_every_route_of_the_administration_is_documented(tmp_path: Path) -> None:
    given = {"data.dir": str(tmp_path), "broker.spawn": "false", "backend.timeout": "10ms"}
    app = create_app(load(None, {}, given), only_admin=True)
    page = (DOCS / "pulsar-admin.md").read_text(encoding="utf-8")
    routes = {
        f"`{method} {shown(rule.rule)}`"
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    app.extensions["router.close"]()
    routes = {route for route in routes if not route.endswith("/{rest}`")}
    assert len(routes) > 60
    assert set(re.findall(r"`(?:GET|PUT|POST|DELETE) /(?:admin|lookup)/v2/[^`]*`", page)) == routes


def shown(rule: str) -> str:
    """Return a route as pages write it: PIP 64's without the domain, and in one spelling."""
    plain = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule)
    if plain.startswith("/topics/"):
        plain = plain.replace("/consumers/{consumer}", "/consumer/{consumer}")
    return re.sub(r"^/topics/(?:non-)?persistent/\{tenant\}", "/topics/{tenant}", plain)


def parameters(source: str) -> set[str]:
    """Return the names of the query parameters that a module reads."""
    reading = r"(?:query|Query\([\w.]+\))\.(?:text|number|flag|choice|moment)\(\"(\w+)\""
    return set(re.findall(reading, source))


def test_every_query_parameter_is_documented() -> None:
    for module, document, known in (
        ("dmaap/events.py", "http.md", {"timeout", "limit", "partitionKey", "from", "ack"}),
        ("pulsar_rest/read.py", "pulsar-rest.md", {"max_messages", "schema_type", "after"}),
    ):
        page = (DOCS / document).read_text(encoding="utf-8")
        found = parameters((ROOT / "router" / "web" / module).read_text(encoding="utf-8"))
        assert known <= found
        assert [name for name in found if f"| `{name}` |" not in page] == []


def commands(group: click.Command, name: str) -> list[tuple[str, click.Command]]:
    """Return a command and all below it, with their full names."""
    found = [(name, group)]
    if isinstance(group, click.Group):
        context = click.Context(group)
        for below in group.list_commands(context):
            command = group.get_command(context, below)
            assert command is not None
            found += commands(command, f"{name} {below}")
    return found


def test_every_command_has_help_and_examples() -> None:
    found = commands(main, "router")
    assert len(found) > len(COMMANDS)
    for name, command in found:
        assert command.help, name
        assert "Examples:" in (command.epilog or ""), name
        assert f"  {name}" in (command.epilog or "") or f"| {name}" in (command.epilog or ""), name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8").split()
    assert [page.stem for page in DOCS.glob("*.md") if page.stem not in index] == ["index"]
