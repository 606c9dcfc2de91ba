"""Who makes a request, and whether they may.

Without a users file everybody is the anonymous principal and may do everything; credentials that
clients send are ignored. With one, each request needs a name and a password of it. With a
permissions file besides, only what it grants is allowed.

A password check costs a tenth of a second and 64 MB on purpose, so its result is remembered for a
short while under a keyed hash of the credentials (never the credentials themselves), and forgotten
when the file changes. Checks are rationed by the node for each user and address *before* the
costly hash; requests that come meanwhile with the same credentials wait for the one check.
"""

from __future__ import annotations

from router.web.access.gate import Access
from router.web.access.permissions import Permissions, Right
from router.web.access.users import Users

__all__ = ["Access", "Permissions", "Right", "Users"]
