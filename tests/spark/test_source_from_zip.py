"""The source from a zip of the package without compiled modules, as `spark-submit --py-files` ships it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.spark.fake_history import FakeHistoryService

ROOT = Path(__file__).resolve().parent.parent.parent

SCRIPT = """
import sys
archive, address = sys.argv[1:]
sys.path.insert(0, archive)
import braidmq, pyspark_braidmq
assert braidmq.__file__.startswith(archive), braidmq.__file__
source = pyspark_braidmq.DefaultSource({"servers": address, "path": "plant/#", "pushdown": "true"})
reader = source.reader(source.schema())
print(sorted(row["position"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()))
stream = source.streamReader(source.schema())
print(stream.initialOffset())
compiled = [name for name, module in sys.modules.items()
            if name.startswith("braidmq") and not str(module.__file__).startswith(archive)]
assert not compiled, compiled
forbidden = [name for name in sys.modules if name.split(".")[:2] in
             (["braidmq", each] for each in ("api", "broker", "storage", "access", "node", "lane", "history"))]
assert not forbidden, forbidden
"""


def test_the_source_runs_from_a_zip_without_compiled_modules(tmp_path: Path, history: FakeHistoryService) -> None:
    row = history.add("plant/1")
    archive = tmp_path / "braidmq.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted([*(ROOT / "src").rglob("*.py")]):
            packed.write(file, file.relative_to(ROOT / "src"))

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(archive), history.address], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str([row["position"]])
