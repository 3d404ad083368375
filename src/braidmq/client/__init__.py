"""MQTT clients: one on asyncio with its transports, and a blocking one that publishes in bulk."""
