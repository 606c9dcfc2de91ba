"""The DMaaP Message Router's HTTP API: events, topics, API keys, administration, metrics."""
