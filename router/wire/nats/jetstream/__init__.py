"""The JSON model of the JetStream API: configurations, requests, replies and error codes."""
