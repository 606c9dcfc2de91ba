"""Requests signed with an API key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import UnauthenticatedError
from router.model import Principal
from router.node.memory import MemoryRegistry
from router.services.keys import KIND, ApiKey, Keys
from router.web.access.signatures import Signatures, parse_date, sign
from tests.processes import ManualClock

NOW = datetime(2026, 7, 31, 12, 0, 0, tzinfo=UTC)
SECRET = "0123456789abcdef01234567"
# The original's ten patterns, for a UTC time; %z of Python is not what Java writes.
PATTERNS = [
    "%Y-%m-%dT%H:%M:%SUTC",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y-%m-%dT%H:%M:%S+00:00",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%a %b %d %H:%M:%S UTC %Y",
    "%a, %d %b %y %H:%M:%S GMT",
    "%d %b %y %H:%M:%S +0000",
    "%a %b %d %H:%M:%S %Y",
    "%A, %d-%b-%y %H:%M:%S GMT",
]
WHOLE_MINUTES = ["%a, %d %b %y %H:%M UTC", "%d %b %y %H:%M UT"]
times = st.datetimes(datetime(2000, 1, 1), datetime(2099, 12, 31)).map(
    lambda at: at.replace(microsecond=0, tzinfo=UTC)
)


def signed(
    date: str | None = None, name: str = "key", secret: str = SECRET, nonce: str | None = None
) -> dict[str, str]:
    """Return the headers of a signed request, as a server hands them over."""
    date = NOW.strftime("%a, %d %b %Y %H:%M:%S UTC") if date is None else date
    text = date if nonce is None else f"{date}:{nonce}"
    found = {
        "HTTP_X_CAMBRIAAUTH": f"{name}:{sign(secret, text).decode()}",
        "HTTP_X_CAMBRIADATE": date,
    }
    return found if nonce is None else found | {"HTTP_X_NONCE": nonce}


def moved(by: float) -> str:
    return (NOW + timedelta(seconds=by)).strftime("%Y-%m-%dT%H:%M:%SZ")


Made = Callable[..., Signatures]


@pytest.fixture
def made(clock: ManualClock) -> Made:
    registry = MemoryRegistry()
    registry.put(KIND, "key", ApiKey("key", SECRET).dump(), 0, 1)

    def make(admin: str = "", window: float = 600) -> Signatures:
        keys = Keys(registry, 1, clock)
        return Signatures(keys, admin, window, lambda: int(NOW.timestamp() * 1000))

    return make


@given(at=times, pattern=st.sampled_from(PATTERNS))
def test_date_is_read_in_each_of_the_patterns(at: datetime, pattern: str) -> None:
    assert parse_date(at.strftime(pattern)) == at.timestamp()


@given(at=times, pattern=st.sampled_from(WHOLE_MINUTES))
def test_date_without_seconds_is_read(at: datetime, pattern: str) -> None:
    assert parse_date(at.strftime(pattern)) == at.replace(second=0).timestamp()


@given(at=times, minutes=st.integers(-14 * 60, 14 * 60), colon=st.booleans(), gmt=st.booleans())
def test_numeric_zone_is_taken_into_account(
    at: datetime, minutes: int, colon: bool, gmt: bool
) -> None:
    local = at.astimezone(timezone(timedelta(minutes=minutes)))
    sign_, (hour, minute) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
    zone = f"{'GMT' if gmt else ''}{sign_}{hour:02d}{':' if colon else ''}{minute:02d}"
    assert parse_date(local.strftime(f"%a, %d %b %Y %H:%M:%S {zone}")) == at.timestamp()
    assert parse_date(local.strftime(f"%Y-%m-%dT%H:%M:%S{zone}")) == at.timestamp()


@pytest.mark.parametrize(
    ("zone", "hours"),
    [("EST", -5), ("EDT", -4), ("CST", -6), ("CDT", -5), ("MST", -7), ("MDT", -6), ("PST", -8),
     ("PDT", -7), ("UT", 0), ("Z", 0), ("pst", -8)],
)  # fmt: skip
def test_named_zone_is_taken_into_account(zone: str, hours: int) -> None:
    expected = datetime(2026, 7, 31, 12, 0, 0, tzinfo=timezone(timedelta(hours=hours))).timestamp()
    assert parse_date(f"Fri, 31 Jul 2026 12:00:00 {zone}") == expected
    assert parse_date(f"Fri Jul 31 12:00:00 {zone} 2026") == expected


@pytest.mark.parametrize(
    "date",
    ["", "now", "2026-07-31", "2026-13-01T00:00:00Z", "Fri, 31 Foo 2026 12:00:00 UTC",
     "Fri, 31 Jul 2026 12:00:00 XYZ", "Fri, 31 Jul 2026 24:00:00 UTC", "0026-07-31T12:00:00Z",
     "1785499200000", "Fri, 00 Jul 2026 12:00:00 UTC", "٣1 Jul 26 12:00 UT", "x" * 300],
)  # fmt: skip
def test_what_is_no_date_is_none(date: str) -> None:
    assert parse_date(date) is None


@given(st.text(alphabet="0123456789 :,-+TZUFriJulGMT", max_size=40))
def test_any_text_is_a_date_or_none(text: str) -> None:
    found = parse_date(text)
    assert found is None or isinstance(found, int)


def test_signature_is_that_of_the_original() -> None:
    # HMAC-SHA1 of RFC 2202, test case 2, as base64
    assert sign("Jefe", "what do ya want for nothing?") == b"7/zfauXrL6LSdBbV8YTfnCWafHk="


def test_signed_request_is_the_keys(made: Made) -> None:
    assert made().principal(signed()) == Principal("key", key=True)
    assert made().principal(signed(nonce="n:1")) == Principal("key", key=True)


@pytest.mark.parametrize("zone", ["+05:30", "-00:25", "GMT+5:30", "UTC-05:30"])
def test_zone_is_not_cut_by_a_nonce(made: Made, zone: str) -> None:
    """The same signed text, 25 and more minutes old, must not be read as a later time."""
    now = NOW.astimezone(timezone(timedelta(hours=-1 if zone == "-00:25" else 5)))
    for form in ("%Y-%m-%dT%H:%M:%S", "%a, %d %b %Y %H:%M:%S ", "%d %b %y %H:%M "):
        date = now.strftime(form) + zone
        whole = signed(date)
        cut, _, nonce = date.rpartition(":")
        stolen = whole | {"HTTP_X_CAMBRIADATE": cut, "HTTP_X_NONCE": nonce}
        with pytest.raises(UnauthenticatedError, match="zone without minutes"):
            made(window=1e6).principal(stolen)
        assert made(window=1e6).principal(whole).name == "key"
        assert made(window=1e6).principal(signed(date, nonce="n")).name == "key"


def test_zone_without_minutes_is_taken_without_a_nonce(made: Made) -> None:
    date = NOW.strftime("%Y-%m-%dT%H:%M:%S+00")
    assert made().principal(signed(date)).name == "key"
    with pytest.raises(UnauthenticatedError):
        made().principal(signed(date, nonce="n"))


def test_every_name_of_the_headers_is_read(made: Made) -> None:
    found = signed()
    auth, date = found["HTTP_X_CAMBRIAAUTH"], found["HTTP_X_CAMBRIADATE"]
    for name in ("HTTP_X_DATE", "HTTP_DATE"):
        assert made().principal({"HTTP_X_AUTH": auth, name: date}).name == "key"
    assert made().principal({**found, "HTTP_DATE": "another one"}).name == "key"


@pytest.mark.parametrize("by", [-599, 0, 599])
def test_signature_within_the_window_counts(made: Made, by: int) -> None:
    assert made().principal(signed(moved(by))).name == "key"


@pytest.mark.parametrize("by", [-601, 601])
def test_signature_outside_of_the_window_is_refused(made: Made, by: int) -> None:
    with pytest.raises(UnauthenticatedError, match="600 seconds"):
        made().principal(signed(moved(by)))
    assert made(window=6_000_000).principal(signed(moved(by))).name == "key"


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"HTTP_X_CAMBRIAAUTH": "key"},
        {"HTTP_X_CAMBRIAAUTH": "key:"},
        {"HTTP_X_CAMBRIAAUTH": ":sig"},
        {"HTTP_X_CAMBRIAAUTH": "k" * 300 + ":sig"},
        {"HTTP_X_CAMBRIAAUTH": signed()["HTTP_X_CAMBRIAAUTH"]},
        signed() | {"HTTP_X_CAMBRIADATE": "yesterday"},
        signed() | {"HTTP_X_CAMBRIADATE": moved(1)},
        signed() | {"HTTP_X_NONCE": "n"},
        signed(secret="another"),
        signed(name="unknown"),
        signed(name="unknown", secret=""),
        signed(name="admin", secret=""),
        signed() | {"HTTP_X_CAMBRIAAUTH": "key:\xe9\xff"},
    ],
)
def test_signature_that_is_wrong_is_refused(made: Made, sent: dict[str, str]) -> None:
    with pytest.raises(UnauthenticatedError):
        made().principal(sent)


def test_record_without_a_secret_is_nobodys_key() -> None:
    registry = MemoryRegistry()
    registry.put(KIND, "blank", ApiKey("blank", "").dump(), 0, 1)
    keys = Keys(registry, 1, ManualClock())
    signatures = Signatures(keys, "", 600, lambda: int(NOW.timestamp() * 1000))
    with pytest.raises(UnauthenticatedError):
        signatures.principal(signed(name="blank", secret=""))


def test_admin_key_has_a_narrow_window_whatever_the_setting(made: Made) -> None:
    signatures = made(admin="very secret", window=6_000_000)
    found = signatures.principal(signed(name="admin", secret="very secret"))
    assert found == Principal("admin", key=True, admin=True)
    with pytest.raises(UnauthenticatedError):
        signatures.principal(signed(moved(-601), name="admin", secret="very secret"))
    with pytest.raises(UnauthenticatedError):
        signatures.principal(signed(name="admin", secret="guess"))
