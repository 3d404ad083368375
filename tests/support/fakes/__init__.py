"""In-memory stand-ins for one port each: the log, the store, operations, the history service, the clock.

A fake replaces what is below or beside the code under test and keeps what it was told. Whole brokers that run in the test's own
process, their network and their clients are in ``tests.support.simulator``.
"""
