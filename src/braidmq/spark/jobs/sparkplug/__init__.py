"""Sparkplug B payloads and births."""
