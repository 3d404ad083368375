"""The project's files, as a commit would hold them."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "src" / "braidmq"


@functools.cache
def project_files() -> tuple[Path, ...]:
    """All files that are or would be committed; outside a git work tree, all that are not built or set up."""
    files = _listed_by_git()
    if files is None:
        unwanted = {"build", "dist", "data", "__pycache__", "node_modules", "braidmq.egg-info"}
        files = [
            file
            for file in ROOT.rglob("*")
            if not any(part in unwanted or (part.startswith(".") and part != ".ci") for part in file.relative_to(ROOT).parts)
            and file.suffix not in {".so", ".pyc"}
        ]
    return tuple(sorted(file for file in files if file.is_file()))


def _listed_by_git() -> list[Path] | None:
    if not shutil.which("git"):
        return None
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name] if listed.returncode == 0 else None


def text_files() -> list[Path]:
    """Those that people read."""
    return [file for file in project_files() if file.suffix not in {".png", ".svg", ".ico"}]


def relative(file: Path) -> str:
    """The name that a failed test shows."""
    return file.relative_to(ROOT).as_posix()
