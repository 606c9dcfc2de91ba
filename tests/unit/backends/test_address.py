from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.backends.pulsar import PulsarAddress
from router.errors import SettingError

hosts = st.tuples(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), st.integers(1, 65535))


@given(hosts=st.lists(hosts, min_size=1, max_size=4), tls=st.booleans())
def test_an_address_survives_being_written_and_read(
    hosts: list[tuple[str, int]], tls: bool
) -> None:
    address = PulsarAddress(tuple(hosts), tls)
    assert PulsarAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("pulsar://broker", (("broker", 6650),)),
        ("pulsar://a:1,b/", (("a", 1), ("b", 6650))),
        ("pulsar+ssl://broker", (("broker", 6651),)),
        ("pulsar://[::1]:6650", (("::1", 6650),)),
    ],
)
def test_ports_have_defaults(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    assert PulsarAddress.parse(url).hosts == hosts


@pytest.mark.parametrize(
    ("url", "administration"),
    [
        ("pulsar://a:1/?admin=http://b:80/", "http://b:80"),
        ("pulsar://a:1,b:2", "http://a:8080"),
        ("pulsar+ssl://a:1", "https://a:8443"),
        ("pulsar://[::1]:6650", "http://[::1]:8080"),
        ("pulsar://a:1/?admin=none", ""),
    ],
)
def test_the_administration_has_a_default_address(url: str, administration: str) -> None:
    assert PulsarAddress.parse(url).administration == administration


@pytest.mark.parametrize(
    "url",
    [
        "http://a:1",
        "pulsar://",
        "pulsar://a:x",
        "pulsar://a:1,",
        "pulsar://a:99999",
        "pulsar://user@a:1",
        "pulsar://a:1/topic",
        "pulsar://a:1/?admin=",
        "pulsar://a:1/?admin=file:///etc/passwd",
        "pulsar://a:1/?tls=yes",
    ],
)
def test_an_address_that_is_none_is_refused_with_itself(url: str) -> None:
    with pytest.raises(SettingError, match="pulsar"):
        PulsarAddress.parse(url)


@example(password="<a://>")
@given(password=st.text("abc019:/?#[]@,&=%\u2100", min_size=3, max_size=12).map(lambda s: f"<{s}>"))
def test_no_piece_of_a_password_in_the_url_is_told(password: str) -> None:
    for url in (
        f"pulsar://user:{password}@a:1/",
        f"pulsar://a:1,user:{password}@b",
        f"pulsar:user:{password}@b",
    ):
        with pytest.raises(SettingError) as refused:
            PulsarAddress.parse(url)
        told = str(refused.value)
        assert "<" not in told
        assert ">" not in told
