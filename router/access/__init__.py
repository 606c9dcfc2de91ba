"""Who clients are and what they may do, for every protocol: passwords, tokens, permissions.

Nothing here depends on a protocol. HTTP workers and the broker's listeners read the same files and
take the same decisions, and each answers a refusal in its own protocol.
"""
