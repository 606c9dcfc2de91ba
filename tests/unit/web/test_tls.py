"""TLS files: refused with a sentence when they do not serve, renewed while the server runs."""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization

from router.access import certificates
from router.errors import SettingError
from router.settings import load
from router.web import tls
from router.web.server import options
from tests.servers.certificates import Authority, Certificate

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Certificate:
    return authority.issue("server")


def checked(**flags: object) -> tls.Tls | None:
    given = {name.replace("__", "."): str(value) for name, value in flags.items()}
    return tls.tls_of(load(None, {}, given))


def test_tls_is_off_when_nothing_is_set() -> None:
    assert checked() is None


def test_tls_has_every_port_when_it_has_none_of_its_own(pair: Certificate) -> None:
    made = checked(server__cert=pair.cert, server__key=pair.key)
    assert made is not None
    assert made.serves(("127.0.0.1", 3904))


def test_tls_has_only_its_own_port(pair: Certificate) -> None:
    made = checked(server__cert=pair.cert, server__key=pair.key, server__tls_port=3905)
    assert made is not None
    assert made.serves(("::1", 3905, 0, 0))
    assert not made.serves(("127.0.0.1", 3904))
    assert not made.serves("/run/router.sock")


def test_tls_takes_the_key_from_the_file_of_the_certificate(pair: Certificate) -> None:
    pair.cert.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    assert checked(server__cert=pair.cert) is not None


def test_context_refuses_what_is_older_than_tls_1_2(pair: Certificate) -> None:
    context = tls.Tls(str(pair.cert), str(pair.key), "", 0).context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


def test_context_verifies_client_certificates_when_there_are_authorities(
    authority: Authority, pair: Certificate
) -> None:
    context = tls.Tls(str(pair.cert), str(pair.key), str(authority.ca), 0).context()
    assert context.verify_mode == ssl.CERT_OPTIONAL


@pytest.mark.parametrize("name", ["key", "client_ca", "tls_port"])
def test_settings_of_tls_are_refused_without_a_certificate(name: str) -> None:
    with pytest.raises(SettingError, match=rf"^server\.{name} is set, but no certificate"):
        checked(**{f"server__{name}": "3905"})


def test_settings_are_refused_when_both_ports_are_one(pair: Certificate) -> None:
    with pytest.raises(SettingError, match="both 3904"):
        checked(server__cert=pair.cert, server__key=pair.key, server__tls_port=3904)


def test_files_are_refused_when_one_is_absent(pair: Certificate, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"server\.cert = .*absent.*No such file"):
        checked(server__cert=tmp_path / "absent", server__key=pair.key)
    with pytest.raises(SettingError, match=r"server\.key = .*absent.*No such file"):
        checked(server__cert=pair.cert, server__key=tmp_path / "absent")
    with pytest.raises(SettingError, match=r"server\.client_ca = .*absent.*No such file"):
        checked(server__cert=pair.cert, server__key=pair.key, server__client_ca=tmp_path / "absent")


def test_files_are_refused_when_the_key_is_of_another_certificate(
    authority: Authority, pair: Certificate
) -> None:
    with pytest.raises(SettingError, match="is not the key of the certificate"):
        checked(server__cert=pair.cert, server__key=authority.issue("other").key)


def test_files_are_refused_when_the_key_is_missing(pair: Certificate) -> None:
    with pytest.raises(SettingError, match="the file must hold the key too"):
        checked(server__cert=pair.cert)


def test_files_are_refused_when_the_key_is_locked(authority: Authority) -> None:
    pair = authority.issue("locked")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    form, locked = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    with pytest.raises(SettingError, match="locked with a password"):
        checked(server__cert=pair.cert, server__key=pair.key)


def test_files_are_refused_when_they_are_not_pem(pair: Certificate, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("not a certificate")
    with pytest.raises(SettingError, match="expected a certificate and its key in PEM form"):
        checked(server__cert=other, server__key=pair.key)
    with pytest.raises(SettingError, match="holds no certificates in PEM form"):
        checked(server__cert=pair.cert, server__key=pair.key, server__client_ca=other)


def test_options_check_the_files(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"server\.cert"):
        options(load(None, {}, {"server.cert": str(tmp_path / "absent")}))


def test_context_stays_the_same_while_the_files_do(
    pair: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_INTERVAL_SECONDS", 0.0)
    made = tls.Tls(str(pair.cert), str(pair.key), "", 0)
    assert made.context() is made.context()


def test_context_is_renewed_with_the_files_as_soon_as_they_go_together(
    authority: Authority, pair: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_INTERVAL_SECONDS", 0.0)
    made = tls.Tls(str(pair.cert), str(pair.key), "", 0)
    old = made.context()
    fresh = authority.issue("fresh")
    fresh.cert.replace(pair.cert)
    assert made.context() is old
    fresh.key.replace(pair.key)
    assert made.context() is not old


def test_context_is_not_looked_at_again_at_once(
    authority: Authority, pair: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_INTERVAL_SECONDS", math.inf)
    made = tls.Tls(str(pair.cert), str(pair.key), "", 0)
    old = made.context()
    fresh = authority.issue("fresh")
    fresh.cert.replace(pair.cert)
    fresh.key.replace(pair.key)
    assert made.context() is old


def test_context_goes_on_when_the_files_vanish(
    pair: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_INTERVAL_SECONDS", 0.0)
    made = tls.Tls(str(pair.cert), str(pair.key), "", 0)
    old = made.context()
    pair.cert.unlink()
    assert made.context() is old


def test_connections_are_refused_until_a_new_worker_finds_a_certificate(
    pair: Certificate,
) -> None:
    made = tls.Tls(str(pair.cert), str(pair.key), "", 0)
    pair.cert.rename(pair.cert.with_name("away"))
    left, right = socket.socketpair()
    with left, right:
        with pytest.raises(ConnectionAbortedError, match="No such file"):
            made.wrap(left)
        pair.cert.with_name("away").rename(pair.cert)
        made.wrap(left).close()


CERTIFICATE = {"subject": ((("organizationName", "ONAP"),), (("commonName", "anna"),))}
# In two parts of the name, and in one.
TWO_NAMES = {"subject": ((("commonName", "anna"),), (("commonName", "ben"),))}
TWO_AT_ONCE = {"subject": ((("commonName", "anna"), ("commonName", "ben")),)}


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (CERTIFICATE, "anna"),
        (None, None),
        ({}, None),
        ({"subject": ((("x", "y"),),)}, None),
        ({"subject": ((("commonName", ""),),)}, None),
        (TWO_NAMES, None),
        (TWO_AT_ONCE, None),
    ],
)
def test_common_name_is_that_of(certificate: dict[str, Any] | None, name: str | None) -> None:
    assert certificates.common_name(lambda: certificate) == name


def test_common_name_is_none_when_the_connection_is_gone() -> None:
    def gone() -> None:
        raise OSError

    assert certificates.common_name(gone) is None


def told(client: object) -> WSGIEnvironment:
    """Return what the application is told of a request on this connection."""
    found: list[WSGIEnvironment] = []

    def application(environ: WSGIEnvironment, _start: StartResponse) -> Iterable[bytes]:
        found.append(environ)
        return []

    environ: WSGIEnvironment = {"wsgi.url_scheme": "http", "gunicorn.socket": client}
    tls.Secure(application)(environ, lambda *_: lambda _: None)
    return found[0]


def test_secure_says_https_only_of_tls_connections(pair: Certificate) -> None:
    made = tls.Tls(str(pair.cert), str(pair.key), "", 0)
    left, right = socket.socketpair()
    with left, right, made.wrap(left) as secure:
        assert told(secure)["wsgi.url_scheme"] == "https"
        assert tls.NAME_KEY not in told(secure)
        assert told(right)["wsgi.url_scheme"] == "http"
