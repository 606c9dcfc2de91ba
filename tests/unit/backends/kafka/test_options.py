"""The URL and the settings of the Kafka backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import settings as all_settings
from router.backends.kafka.options import MIN_INFLATED_BYTES, KafkaConnectionOptions, KafkaOptions
from router.errors import SettingError


def access(url: str, **flags: str) -> KafkaConnectionOptions:
    given = {f"kafka.{name}": value for name, value in flags.items()}
    return KafkaConnectionOptions.parse(url, all_settings.load(None, {}, given))


def test_the_hosts_and_their_ports_are_read() -> None:
    found = access("kafka://a:1,b,[::1]:2/")
    assert found.hosts == (("a", 1), ("b", 9092), ("::1", 2))
    assert (found.client_id, found.mechanism, found.tls) == ("router", "none", None)
    assert str(access("kafka://a")) == "kafka://a:9092"


def test_options_come_before_settings() -> None:
    given = {"client_id": "s", "username": "u", "password": "p", "sasl": "PLAIN"}
    assert access("kafka://a", **given).mechanism == "PLAIN"
    found = access("kafka://a/?client_id=x&sasl=SCRAM-SHA-512&tls=true", **given)
    assert (found.client_id, found.mechanism) == ("x", "SCRAM-SHA-512")
    assert found.tls is not None
    assert found.tls.check_hostname
    assert access("kafka://a/?tls=false", tls="true").tls is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://a/topic", "expected kafka://"),
        ("http://a", "expected kafka://"),
        ("kafka://a/#x", "expected kafka://"),
        ("kafka://user:secret@a", "kafka.username"),
        ("kafka://", "a host is missing"),
        ("kafka://a,,b", "a host is missing"),
        ("kafka://a:port", "port"),
        ("kafka://a/?acks=1", "unknown option 'acks'"),
        ("kafka://a/?sasl=GSSAPI", "sasl is one of"),
        ("kafka://a/?tls=perhaps", "tls is true or false"),
        ("kafka://a/?sasl=PLAIN", "needs kafka.username"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, says: str) -> None:
    with pytest.raises(SettingError) as refused:
        access(url)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    for files in ({"ca": str(tmp_path / "none")}, {"cert": str(broken)}, {"ca": str(broken)}):
        with pytest.raises(SettingError):
            access("kafka://a", tls="true", **files)


@given(password=st.text("abc019:/?#[]@,&=%\u2100", min_size=3, max_size=12).map(lambda s: f"<{s}>"))
def test_no_piece_of_a_password_in_the_url_is_told(password: str) -> None:
    for url in (
        f"kafka://user:{password}@a:1/",
        f"kafka://a:1,user:{password}@b",
        f"kafka:user:{password}@b",
    ):
        with pytest.raises(SettingError) as refused:
            access(url)
        told = str(refused.value)
        assert "<" not in told
        assert ">" not in told


@pytest.mark.parametrize(
    ("answered", "inflated"),
    [("1k", MIN_INFLATED_BYTES), ("5M", MIN_INFLATED_BYTES), ("32M", 32 << 20)],
)
def test_batch_is_inflated_though_a_poll_answers_little_of_it(answered: str, inflated: int) -> None:
    """Passed over, all of its messages would be lost to the group."""
    settings = all_settings.load(None, {}, {"consume.max_bytes": answered})
    assert KafkaOptions.from_settings(settings).max_inflated == inflated
