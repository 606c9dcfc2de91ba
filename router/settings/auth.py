"""The settings of access: who clients are, and what they may do."""

from __future__ import annotations

from typing import Final

from router.settings.parsing import count, duration, flag, one_of, text
from router.settings.setting import Setting

AUTH: Final[tuple[Setting, ...]] = (
    Setting(
        "auth.users",
        text,
        "",
        "htpasswd file of the users; empty, and no keys of tokens: everybody is anonymous, on"
        " loopback only.",
    ),
    Setting(
        "auth.token_secret_file",
        text,
        "",
        "File whose bytes are the secret of HS256 tokens (JWT); `router token key` makes one.",
    ),
    Setting(
        "auth.token_public_key",
        text,
        "",
        "PEM or DER file of the public key of tokens: RS256 by an RSA key, ES256 by one on P-256.",
    ),
    Setting("auth.token_claim", text, "sub", "Claim of a token that has its user's name."),
    Setting(
        "auth.permissions",
        text,
        "",
        "File of permissions; empty: every known user may do everything.",
    ),
    Setting("auth.insecure", flag, "false", "Serve anonymously on addresses other than loopback."),
    Setting("auth.cache", duration, "60s", "How long a verified password is remembered."),
    Setting(
        "auth.session",
        duration,
        "12h",
        "Time after which a user who signed in to the console has to do so again.",
    ),
    Setting(
        "auth.attempts_per_minute",
        count,
        "30",
        "Password checks a minute for one user and address; 0: no limit.",
    ),
    Setting(
        "auth.failures_per_minute",
        count,
        "30",
        "Failed password checks a minute from one address, whatever the names; 0: no limit.",
    ),
    Setting(
        "auth.forbidden_status",
        one_of("401", "403"),
        "403",
        "Status of answers to users without the right.",
    ),
    Setting(
        "auth.hmac_window",
        duration,
        "10m",
        "How far an API key's signature may be from the clock; the original's is 69.4 days.",
    ),
    Setting(
        "auth.admin_secret",
        text,
        "",
        "Secret of the API key `admin`, which may use /admin; empty: there is no such key.",
    ),
    Setting(
        "auth.aaf",
        text,
        "",
        "File of permissions as AAF strings, such as `user org.onap.topic|:topic.x|pub`.",
    ),
    Setting(
        "acl.enforce",
        one_of("auto", "true", "false"),
        "auto",
        "Whether owners and access lists of topics count; auto: where there is a users file.",
    ),
)
