"""A node with small memtables, so that its storage engine writes and compacts tables all the time: `python small.py start`."""

from __future__ import annotations

import sys
from functools import partial
from unittest import mock


def main() -> None:
    """Run the command."""
    from braidmq.cli.main import main as run
    from braidmq.node import core
    from braidmq.storage.engine.rocksdb import Tuning

    mock.patch.object(core, "Tuning", partial(Tuning, memtables_bytes=256 * 1024)).start()
    sys.argv[0] = "braidmq"
    run()


if __name__ == "__main__":
    main()
