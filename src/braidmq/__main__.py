"""``python -m braidmq`` is the ``braidmq`` command."""

from __future__ import annotations

from braidmq.cli.main import main

main()
