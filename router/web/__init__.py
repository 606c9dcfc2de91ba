"""The HTTP side: dialects, access, body formats, and how it is served."""
