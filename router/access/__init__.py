"""Who there is and what they may do, for every listener: users, tokens, certificates, permissions.

Nothing here knows of a protocol: the HTTP front and the broker's listeners read the same files the
same way, and each says in its own words what came of it.
"""
