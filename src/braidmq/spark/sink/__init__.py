"""Publishes Spark rows as MQTT messages, each exactly once."""
