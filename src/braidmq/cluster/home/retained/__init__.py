"""Retained messages over several cores: intents, the homes of topics, and what nodes read."""
