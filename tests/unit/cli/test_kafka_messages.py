"""`router kafka-messages` from its arguments to its output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from router.cli import main, status

DEFINITION = {
    "apiKey": 1,
    "type": "request",
    "name": "ExampleRequest",
    "validVersions": "0-1",
    "flexibleVersions": "1+",
    "fields": [{"name": "Id", "type": "int16", "versions": "0+"}],
}


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["kafka-messages", *map(str, arguments)], input=text)


def written(folder: Path, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ExampleRequest.json").write_text(json.dumps({**DEFINITION, **more}))
    return folder


def test_show_draws_the_layout_of_a_version(tmp_path: Path) -> None:
    done = run("show", "ExampleRequest", "1", "--definitions", written(tmp_path))
    assert done.output.splitlines() == [
        "ExampleRequest v1 (request, API key 1, flexible)",
        "  Id: int16 (2 bytes)",
        "  tagged fields: uvarint count, then (uvarint tag, uvarint size, value)",
    ]
    assert run("show", "MetadataResponse", "9").exit_code == status.DONE


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "ExampleRequest", "2"), "ExampleRequest has the versions 0-1"),
        (("show", "Nothing", "0"), "there is no message Nothing"),
        (("decode", "ExampleRequest", "0", "00"), "Id: 2 bytes are wanted where 1 remain"),
        (("decode", "ExampleRequest", "0", "xx"), "non-hexadecimal"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = run(*arguments, "--definitions", written(tmp_path))
    assert done.exit_code == status.BAD_DATA
    assert sentence in done.output


def test_decode_prints_json(tmp_path: Path) -> None:
    folder = written(tmp_path)
    done = CliRunner().invoke(
        main,
        ["kafka-messages", "decode", "ExampleRequest", "0", "0007ff", "--definitions", str(folder)],
    )
    assert json.loads(done.stdout) == {"id": 7}
    assert "bytes after the message: ff" in done.stderr


def test_check_answers_by_status_and_json_of_files_and_folders(tmp_path: Path) -> None:
    old = written(tmp_path / "old")
    new = written(tmp_path / "new", validVersions="1")
    file = "ExampleRequest.json"
    for first, second in ((old, new), (old / file, new / file)):
        done = run("check", first, second, "--json")
        found = json.loads(done.output.splitlines()[-1])
        assert done.exit_code == status.FAILED
        assert (found["verdict"], found["kinds"]) == ("incompatible", ["version-dropped"])
        assert found["findings"][0]["versions"] == [0]
        same = run("check", first, first, "--json")
        assert same.exit_code == status.DONE
        assert json.loads(same.output) == {"verdict": "compatible", "kinds": [], "findings": []}
    assert "version-dropped: ExampleRequest (versions 0)" in run("check", old, new).output
    assert run("check", old, new / file).exit_code == status.USAGE


def test_a_definition_that_breaks_a_rule_is_named(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad", validVersions="0+")
    for done in (
        run("check", bad, bad),
        run("compile", bad, "--out", tmp_path / "out"),
        run("codec", "--definitions", bad, text="{}\n"),
    ):
        assert done.exit_code == status.BAD_DATA
        assert "ExampleRequest.json: validVersions needs an upper end" in done.output


def test_codec_answers_every_line(tmp_path: Path) -> None:
    lines = [
        {"op": "encode", "name": "ExampleRequest", "version": 1, "json": {"id": 7}},
        {"op": "decode", "name": "ExampleRequest", "version": 1, "hex": "000700"},
        {"op": "decode", "name": "ExampleRequest", "version": 1, "hex": "0007"},
        {"op": "encode", "name": "ExampleRequest", "version": 1, "json": {}},
        {"op": "encode", "name": "ExampleRequest", "version": 9, "json": {"id": 7}},
        {"op": "encode", "name": "Nothing", "version": 0, "json": {}},
        {"op": "encode", "name": ["x"], "version": 0, "json": {}},
        {"op": "sing", "name": "ExampleRequest", "version": 0},
        [],
    ]
    text = "\n".join([*map(json.dumps, lines), "{", ""])
    done = run("codec", "--definitions", written(tmp_path), text=text)
    answers = [json.loads(line) for line in done.output.splitlines()]
    assert answers[:2] == [{"hex": "000700"}, {"json": {"id": 7}}]
    assert [list(answer) for answer in answers[2:]] == [["error"]] * 8


def test_programs_read_json(tmp_path: Path) -> None:
    folder = written(tmp_path / "in")
    shown = run("show", "ExampleRequest", "0", "--json", "--definitions", folder)
    assert json.loads(shown.output)["layout"][1] == "  Id: int16 (2 bytes)"
    decoded = run("decode", "ExampleRequest", "0", "0007", "--json", "--definitions", folder)
    assert json.loads(decoded.output) == {"json": {"id": 7}}
    made = run("compile", folder, "--out", tmp_path / "out", "--json")
    assert json.loads(made.output)["messages"] == ["ExampleRequest"]


def test_folders_without_definitions_are_named(tmp_path: Path) -> None:
    assert "holds no definitions" in run("compile", tmp_path, "--out", tmp_path / "out").output
    assert run("check", tmp_path / "a", tmp_path / "b").exit_code == status.USAGE


def test_compile_writes_a_package(tmp_path: Path) -> None:
    out = tmp_path / "messages"
    done = run("compile", written(tmp_path / "in"), "--out", out)
    assert done.exit_code == status.DONE
    assert sorted(path.name for path in out.iterdir()) == [
        "__init__.py",
        "_runtime",
        "example_request.py",
    ]
    text = (out / "example_request.py").read_text("utf-8")
    assert "class ExampleRequest(KafkaMessage):" in text
    assert "def _read_1(buffer, at, left=p.UNBOUNDED):" in text
