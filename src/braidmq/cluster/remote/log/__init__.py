"""The log of a node without a database: blocks to the homes, scans of their logs."""
