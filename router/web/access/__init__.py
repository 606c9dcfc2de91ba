"""Who makes a request, and whether they may.

Without users and keys of tokens everybody may do everything, but for topics with an owner where
`acl.enforce` says so; who signs with an API key is known by it, all others are the anonymous
principal. With them each request needs a name and a password, a token, the signature of an API key,
or a client certificate. With a file of permissions besides, only what it grants is allowed. What
the broker's listeners need of this as well is in router/access.
"""

from __future__ import annotations

from router.access.permissions import Permissions, Right
from router.access.users import Users
from router.web.access.api_keys import ApiKeys
from router.web.access.gate import Access
from router.web.access.lists import AccessLists
from router.web.access.passwords import Passwords
from router.web.access.sessions import Session, Sessions
from router.web.access.signatures import Signatures

__all__ = [
    "Access",
    "AccessLists",
    "ApiKeys",
    "Passwords",
    "Permissions",
    "Right",
    "Session",
    "Sessions",
    "Signatures",
    "Users",
]
