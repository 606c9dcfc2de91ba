"""Data pipelines on Spark: topics in, SQL between, topics and tables out, each exactly once."""
