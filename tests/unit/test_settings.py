"""Settings: where values come from, which one wins, and what stops the start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import SettingError
from router.settings import (
    BY_NAME,
    SETTINGS,
    config_file,
    duration,
    environment,
    load,
    readable_secrets,
    size,
    variable,
    without_password,
)
from router.settings.parsing import flag

WORD = st.text("abcXYZ019._~%+!:@-", min_size=1, max_size=20)


def written(folder: Path, text: str) -> Path:
    file = folder / "router.cfg"
    file.write_text(text, encoding="utf-8")
    return file


def test_load_gives_every_setting_its_default() -> None:
    settings = load(None, {})
    assert set(settings.values) == {setting.name for setting in SETTINGS}
    assert {value.origin for value in settings.values.values()} == {"default"}
    assert settings.number("server.port") == 3904


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_setting_is_complete(setting: object) -> None:
    known = BY_NAME[setting.name]  # type: ignore[attr-defined]
    known.parse(known.default)
    assert known.sentence.endswith(".")
    assert known.name.count(".") == 1
    assert known.parse.__doc__


@pytest.mark.parametrize(
    ("file", "environ", "flags", "port", "origin"),
    [
        ("", {}, {}, 3904, "default"),
        ("[server]\nport = 1", {}, {}, 1, "router.cfg"),
        ("[server]\nport = 1", {"ROUTER_SERVER_PORT": "2"}, {}, 2, "variable ROUTER_SERVER_PORT"),
        ("[server]\nport = 1", {"ROUTER_SERVER_PORT": "2"}, {"server.port": "3"}, 3, "command"),
    ],
)
def test_load_lets_the_last_source_win(
    tmp_path: Path,
    file: str,
    environ: dict[str, str],
    flags: dict[str, str],
    port: int,
    origin: str,
) -> None:
    value = load(written(tmp_path, file), environ, flags).values["server.port"]
    assert value.value == port
    assert origin in value.origin


def test_load_names_the_nearest_setting_when_a_key_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"did you mean server\.port"):
        load(written(tmp_path, "[server]\nprt = 1"), {})


def test_load_names_the_nearest_variable_when_one_is_unknown() -> None:
    with pytest.raises(SettingError, match="did you mean ROUTER_SERVER_PORT"):
        load(None, {"ROUTER_SERVER_PROT": "1"})


def test_load_refuses_a_value_that_does_not_parse() -> None:
    with pytest.raises(SettingError, match=r"server\.port = 'many'"):
        load(None, {}, {"server.port": "many"})


def test_load_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"absent\.cfg: No such file or directory$"):
        load(tmp_path / "absent.cfg", {})


def test_load_refuses_a_file_that_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no section headers"):
        load(written(tmp_path, "port = 1"), {})


def test_load_takes_percent_signs_as_they_are(tmp_path: Path) -> None:
    settings = load(written(tmp_path, "[data]\ndir = /a%b"), {})
    assert settings.text("data.dir") == "/a%b"


def test_config_file_prefers_the_given_one_to_the_variable(tmp_path: Path) -> None:
    assert config_file({"ROUTER_CONFIG": "other"}, tmp_path) == tmp_path


def test_config_file_is_none_when_the_variable_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "router.cfg").touch()
    monkeypatch.chdir(tmp_path)
    assert config_file({"ROUTER_CONFIG": ""}) is None
    assert config_file({}) == Path("config/router.cfg")


def test_config_file_is_none_when_the_usual_one_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_file({}) is None


def test_variable_is_different_for_every_setting() -> None:
    assert len({variable(name) for name in BY_NAME}) == len(BY_NAME)


@given(number=st.integers(0, 1 << 40), unit=st.sampled_from(["", "K", "M", "G", "KiB", "b"]))
def test_size_is_linear_in_its_number(number: int, unit: str) -> None:
    assert size(f"{number}{unit}") == number * size(f"1{unit}")


@given(st.integers(0, 10**6))
def test_duration_agrees_between_units(number: int) -> None:
    assert duration(f"{number}") == duration(f"{number}s") == duration(f"{number * 1000}ms")
    assert duration(f"{number}m") == number * 60
    assert duration(f"{number}d") == number * 24 * duration("1h")


@pytest.mark.parametrize("text", ["", "-1", "1x", "1.5K", "x", "1 2"])
def test_size_refuses_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        size(text)


@pytest.mark.parametrize("text", ["", "-1s", "1y", "s", "1,5s"])
def test_duration_refuses_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        duration(text)


@pytest.mark.parametrize(("text", "value"), [("Yes", True), ("off", False), ("1", True)])
def test_flag_understands_the_usual_words(text: str, value: bool) -> None:
    assert flag(text) is value


def test_flag_refuses_other_words() -> None:
    with pytest.raises(ValueError, match="true or false"):
        flag("maybe")


@given(WORD, WORD.map(lambda word: f"<{word}>"))
def test_without_password_hides_the_password_of_any_user(user: str, password: str) -> None:
    user = user.replace(":", "").replace("@", "")
    url = f"kafka://{user}:{password}@k1:9092,k2:9092/?a=b"
    assert without_password(url) == f"kafka://{user}:***@k1:9092,k2:9092/?a=b"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("embedded", "embedded"),
        ("kafka://k1:9092,k2:9092/?acks=all", "kafka://k1:9092,k2:9092/?acks=all"),
        ("pulsar://p:6650/?admin=http://p:8080", "pulsar://p:6650/?admin=http://p:8080"),
        ("pulsar://p/?admin=http://u:p@h:80", "pulsar://p/?admin=http://u:***@h:80"),
        ("kafka://k/?password=x&a=b", "kafka://k/?password=***&a=b"),
        ("kafka://u:p/a?s#s@k/?a=b", "kafka://u:***@k/?a=b"),
        ("pulsar://token@p/?admin=http://token@h", "pulsar://***@p/?admin=http://***@h"),
        ("u:p@h:80", "u:***@h:80"),
        ("pulsar://p/?a=b&authToken=x#f", "pulsar://p/?a=b&authToken=***#f"),
    ],
)
def test_without_password_knows(url: str, said: str) -> None:
    assert without_password(url) == said


SECRET_FILE = """
[kafka]
password = hunter2
[backend]
url = kafka://user:hunter2@k1:9092
[server]
port = 1
"""


def test_secrets_in_a_file_that_all_users_can_read_are_named(tmp_path: Path) -> None:
    (file := tmp_path / "router.cfg").write_text(SECRET_FILE)
    file.chmod(0o644)
    found = readable_secrets(load(file, {}))
    assert [name in sentence for name, sentence in zip(SECRET_NAMES, found, strict=True)] == [
        True,
        True,
    ]
    assert all(f"chmod o-r {file}" in sentence for sentence in found)
    assert "hunter2" not in "".join(found)


def test_secrets_that_others_cannot_read_are_not_named(tmp_path: Path) -> None:
    (file := tmp_path / "router.cfg").write_text(SECRET_FILE)
    file.chmod(0o640)
    assert readable_secrets(load(file, {})) == []
    (other := tmp_path / "other.cfg").write_text("[server]\nport = 1\n")
    assert readable_secrets(load(other, {"ROUTER_KAFKA_PASSWORD": "hunter2"})) == []


SECRET_NAMES = ("backend.url", "kafka.password")


def test_environment_carries_values_and_where_they_came_from(tmp_path: Path) -> None:
    file = written(tmp_path, "[server]\nport = 1\nworkers = 0")
    before = load(file, {"ROUTER_LOG_LEVEL": "debug"}, {"server.host": "::1"})
    before = before.replaced("router serve", broker__spawn="false")
    variables = environment(before)
    after = load(None, variables)
    assert after.values == before.values
    assert config_file(variables) is None
    # Another process does as well, and says the same again.
    assert environment(after) == variables


def test_origins_of_what_is_not_set_do_not_matter() -> None:
    values = load(None, {"ROUTER_ORIGINS": '{"server.port": "command line"}'}).values
    assert values["server.port"].origin == "default"


@pytest.mark.parametrize("text", ["", "x", "[]", '{"server.port": 1}'])
def test_origins_that_the_router_did_not_write_stop_the_start(text: str) -> None:
    with pytest.raises(SettingError, match="ROUTER_ORIGINS"):
        load(None, {"ROUTER_ORIGINS": text})


def test_replaced_settings_are_parsed_and_leave_the_others() -> None:
    before = load(None, {})
    after = before.replaced("here", server__port="7")
    assert (after.number("server.port"), after.values["server.port"].origin) == (7, "here")
    assert before.number("server.port") == 3904
    with pytest.raises(SettingError, match="here"):
        before.replaced("here", server__port="x")
