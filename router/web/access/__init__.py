"""Who makes a request, and whether they may.

If settings name neither users nor keys of tokens, clients are anonymous and may do everything,
except with topics that have an owner if `acl.enforce` says so; a client that signs with an API key
is known by it. Otherwise each request needs a name and a password, a token, the signature of an API
key, or a client certificate. With a file of permissions, only what it grants is allowed. What the
broker's listeners need of this as well is in router/access.
"""

from __future__ import annotations

from router.access.permissions import Permissions, Right
from router.web.access.authentication import RequestAuthorizer, WorkerPasswords
from router.web.access.management import AccessLists, ApiKeys
from router.web.access.sessions import ConsoleSession, Sessions
from router.web.access.signatures import Signatures

__all__ = [
    "AccessLists",
    "ApiKeys",
    "ConsoleSession",
    "Permissions",
    "RequestAuthorizer",
    "Right",
    "Sessions",
    "Signatures",
    "WorkerPasswords",
]
