"""The log of one stream: its messages by sequence and subject, and what its limits delete."""
