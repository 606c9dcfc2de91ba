"""A real Apache Pulsar (standalone) on loopback, with tokens and TLS when asked for.

One process holds the broker, one bookie and the metadata, which is RocksDB in the server's folder.
Its own standalone.conf is not in the jars: what is written here differs from the defaults of a
broker only where one node needs it, where a test would wait, and where the default cannot work on
loopback. With `secure` the same ports ask for a token, and two further ones speak TLS.
"""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.request
from pathlib import Path
from typing import Any

import jwt

from tests.ports import free_port
from tests.servers.certificates import Authority
from tests.servers.java import JavaServer

ADMIN = "admin"
SECRET = b"a secret of the tests, 32 bytes long or more"
OPENS = (
    *("java.base/java.io", "java.base/java.lang", "java.base/java.nio", "java.base/java.util"),
    *("java.base/java.util.zip", "java.base/jdk.internal.misc", "java.base/jdk.internal.platform"),
    *("java.base/sun.net", "java.base/sun.nio.ch", "java.management/sun.management"),
    "jdk.management/com.sun.management.internal",
)
ONE_NODE = {
    "clusterName": "standalone",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "listeningInterface": "lo",
    "allowLoopback": "true",
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
    # without it the first entry of 5 MiB wrecks the bookie's connection
    "nettyMaxFrameSizeBytes": 5_253_120,
    "managedLedgerCacheSizeMB": 32,
    "dbStorage_writeCacheMaxSizeMb": 16,
    "dbStorage_readAheadCacheMaxSizeMb": 4,
    "dbStorage_rocksDB_blockCacheSize": 8_388_608,
    "numIOThreads": 2,
    "numHttpServerThreads": 8,
    "numCacheExecutorThreadPoolSize": 2,
    "brokerShutdownTimeoutMs": 2000,
    "loadBalancerEnabled": "false",
    "transactionCoordinatorEnabled": "true",
}
LOG = """appender.out.type=Console
appender.out.name=out
appender.out.target=SYSTEM_ERR
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
"""


class Pulsar(JavaServer):
    """Apache Pulsar on one folder: `url` for clients, `admin` for HTTP.

    With `secure`, who comes needs a token (`token(role)`; ADMIN may do everything), and there are
    `url_tls` and `admin_tls`, whose certificate `authority` signed. `settings` are a broker's own.
    """

    NAME = "pulsar"
    HEAP = "400m"
    MAIN = "org.apache.pulsar.PulsarStandaloneStarter"
    SECONDS = 200.0

    def __init__(self, folder: Path, *, secure: bool = False, **settings: object) -> None:
        super().__init__(folder)
        self._http = free_port()
        self._bookie = free_port()
        self._given = settings
        self.secure = secure
        if secure:
            self._tls, self._https = free_port(), free_port()
            self.url_tls = f"pulsar+ssl://127.0.0.1:{self._tls}"
            self.admin_tls = f"https://127.0.0.1:{self._https}"
            self.authority = Authority(self.folder / "authority")
            self._given = self._secrets() | settings

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"pulsar://{self.address}"

    @property
    def admin(self) -> str:
        """The base URL of the administration and of lookups over HTTP."""
        return f"http://127.0.0.1:{self._http}"

    @property
    def backend(self) -> str:
        """What the router is given with --backend: over TLS where the server is secure."""
        if self.secure:
            return f"{self.url_tls}/?admin={self.admin_tls}"
        return f"{self.url}/?admin={self.admin}"

    @property
    def flags(self) -> dict[str, str]:
        """The settings that the router needs beside `backend`, with __ for the dot."""
        if self.secure:
            return {"pulsar__token": self.token(ADMIN), "pulsar__ca": str(self.authority.ca)}
        return {}

    def token(self, role: str) -> str:
        """Return a token that a secure server believes."""
        return jwt.encode({"sub": role}, SECRET, "HS256")

    def ask(self, method: str, path: str, body: object = None, seconds: float = 30.0) -> Any:
        """Ask the administration, below /admin/v2; raise HTTPError."""
        request = urllib.request.Request(
            f"{self.admin}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        if self.secure:
            request.add_header("Authorization", f"Bearer {self.token(ADMIN)}")
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            data = answer.read()
        try:
            return json.loads(data) if data else None
        except ValueError:
            return data.decode()

    def _secrets(self) -> dict[str, object]:
        """Return the settings of tokens and of TLS."""
        own = self.authority.issue("pulsar")
        key = base64.b64encode(SECRET).decode()
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": (
                "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"
            ),
            "tokenSecretKey": f"data:;base64,{key}",
            "superUserRoles": ADMIN,
            "brokerClientAuthenticationPlugin": (
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            "brokerClientAuthenticationParameters": json.dumps({"token": self.token(ADMIN)}),
            "brokerServicePortTls": self._tls,
            "webServicePortTls": self._https,
            "tlsCertificateFilePath": own.cert,
            "tlsKeyFilePath": own.key,
            "tlsTrustCertsFilePath": self.authority.ca,
            "brokerClientTrustCertsFilePath": self.authority.ca,
        }

    def _properties(self) -> list[str]:
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
        return [
            *opened,
            "-XX:MaxDirectMemorySize=256m",
            "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
        ]

    def _arguments(self) -> list[str]:
        (self.folder / "log4j2.properties").write_text(LOG)
        settings = {
            "brokerServicePort": self.port,
            "webServicePort": self._http,
            **ONE_NODE,
            **self._given,
        }
        path = self.folder / "standalone.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [
            *("--config", str(path), "--no-functions-worker", "--no-stream-storage"),
            *("--metadata-dir", str(self.folder / "metadata")),
            *("--bookkeeper-dir", str(self.folder / "bookkeeper")),
            *("--bookkeeper-port", str(self._bookie)),
        ]

    def _ready(self) -> bool:
        """Whether it got a message of its own back, and made the namespace that it makes last."""
        with contextlib.suppress(OSError):
            made = "public/default" in self.ask("GET", "namespaces/public", seconds=5)
            return made and bool(self.ask("GET", "brokers/health", seconds=5) == "ok")
        return False
