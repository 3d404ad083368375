"""What a node does with its process when it starts."""

from __future__ import annotations

import subprocess
import sys

from tests.support.started import environment

# The size of the kernel's table of descriptors, before and after the limit is divided.
_SIZES = """
import re
from braidmq.node.process import Rooms

def size():
    return int(re.search(r"FDSize:\\s+(\\d+)", open("/proc/self/status").read())[1])

print(size())
Rooms().furnish()
print(size())
"""


def test_the_file_table_has_room_for_the_limit_before_there_are_connections() -> None:
    limited = ["sh", "-c", 'ulimit -n 3000; exec "$0" "$@"', sys.executable, "-c", _SIZES]

    output = subprocess.run(limited, capture_output=True, text=True, check=True, env=environment()).stdout

    before, after = map(int, output.split())
    assert before < 3000 <= after
