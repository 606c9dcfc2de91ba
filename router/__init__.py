"""The message router: one durable log, spoken to in several dialects."""
