"""Importing the configuration of a Mosquitto broker."""
