"""Who makes a request, and whether they may.

Without a users file everybody may do everything, but for topics with an owner where `acl.enforce`
says so; who signs with an API key is known by it, all others are the anonymous principal. With a
users file each request needs a name and a password of it, the signature of an API key, or a client
certificate. With a file of permissions besides, only what it grants is allowed.
"""

from __future__ import annotations

from router.web.access.gate import Access
from router.web.access.passwords import Passwords
from router.web.access.permissions import Permissions, Right
from router.web.access.signatures import Signatures
from router.web.access.users import Users

__all__ = ["Access", "Passwords", "Permissions", "Right", "Signatures", "Users"]
