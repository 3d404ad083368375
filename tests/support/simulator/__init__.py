"""Brokers and lanes in the test's own process: the world, its loop and clock, its one client (``Peer``), and the session model.

Stand-ins for single ports are in ``tests.support.fakes``.
"""
