"""The project's files, as a commit would hold them."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "src" / "braidmq"


@functools.cache
def project_files() -> tuple[Path, ...]:
    """All files that are or would be committed; outside a git work tree, all that are not built or set up."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        ignored = {"build", "dist", "data", "__pycache__", "node_modules"}
        files = [
            file
            for file in ROOT.rglob("*")
            if not any(part in ignored or (part.startswith(".") and part != ".ci") for part in file.relative_to(ROOT).parts)
            and file.suffix not in {".so", ".pyc"}
        ]
    return tuple(sorted(file for file in files if file.is_file()))


def text_files() -> list[Path]:
    """Those that people read."""
    return [file for file in project_files() if file.suffix not in {".png", ".svg", ".ico"}]


def relative(file: Path) -> str:
    """The name that a failed test shows."""
    return file.relative_to(ROOT).as_posix()
