"""The settings of access: authentication and authorization."""

from __future__ import annotations

from typing import Final

from router.settings.setting import Setting, count, duration, flag, one_of, text

AUTH: Final[tuple[Setting, ...]] = (
    text(
        "auth.users",
        "",
        "htpasswd file of the users; if it is empty and no token keys are set, all clients are"
        " anonymous, on loopback only.",
    ),
    text(
        "auth.token_secret_file",
        "",
        "File whose bytes are the secret of HS256 tokens (JWT); `router token key` creates one.",
    ),
    text(
        "auth.token_public_key",
        "",
        "PEM or DER file of the public key of tokens: RS256 with an RSA key, ES256 with a P-256"
        " key.",
    ),
    text("auth.token_claim", "sub", "Claim of a token that contains the user's name."),
    text("auth.permissions", "", "File of permissions; empty: every known user may do everything."),
    flag("auth.insecure", "false", "Allow anonymous access on addresses other than loopback."),
    duration("auth.cache", "60s", "Time for which a verified password is cached."),
    duration("auth.session", "12h", "Time after which a user of the console has to sign in again."),
    count(
        "auth.attempts_per_minute",
        "30",
        "Maximum number of password checks a minute for one user and address; 0: no limit.",
    ),
    count(
        "auth.failures_per_minute",
        "30",
        "Maximum number of failed password checks a minute from one address, for all names; 0:"
        " no limit.",
    ),
    one_of("401", "403")(
        "auth.forbidden_status", "403", "Status of answers to users without permission."
    ),
    duration(
        "auth.hmac_window",
        "10m",
        "Maximum difference between the time of an API key's signature and the clock; the"
        " original's is 69.4 days.",
    ),
    text(
        "auth.admin_secret",
        "",
        "Secret of the API key `admin`, which may use /admin; empty: this key does not exist.",
    ),
    text(
        "auth.aaf",
        "",
        "File of permissions as AAF strings, such as `user org.onap.topic|:topic.x|pub`.",
    ),
    one_of("auto", "true", "false")(
        "acl.enforce",
        "auto",
        "Enforce owners and access lists of topics; auto: if there is a users file.",
    ),
)
