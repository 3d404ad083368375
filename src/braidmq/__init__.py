"""braidmq: a clustered MQTT 5 broker whose durable message history is a Spark table."""

__version__ = "0.1.0"
