"""NATS without streams: subjects, interest, clients and their rights, calls of the API."""
