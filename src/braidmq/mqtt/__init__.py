"""MQTT 3.1, 3.1.1 and 5.0 without I/O: packets, properties, reason codes, topics."""
