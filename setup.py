"""Builds the compiled lane; everything else is in pyproject.toml.

Without a compiler, Cython or Python's headers the installation still succeeds and the broker runs on the same modules
uncompiled. ``BRAIDMQ_PURE=1`` skips the build, ``BRAIDMQ_COMPILED=1`` turns a failed one into an error.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

LANE = Path("src/braidmq/lane")

# A .pyx is compiled, and the .py of the same name beside it is its uncompiled twin; any other .py is compiled if it has a .pxd.
_PYX = sorted(LANE.glob("*.pyx"))
_PY = sorted(path for path in LANE.glob("*.py") if path.with_suffix(".pxd").exists() and not path.with_suffix(".pyx").exists())
COMPILED = [*_PYX, *_PY]


def extensions() -> list[Extension]:
    """The extension modules to build: none if asked so or if Cython is not there."""
    if os.environ.get("BRAIDMQ_PURE") == "1" or not COMPILED:
        return []
    required = os.environ.get("BRAIDMQ_COMPILED") == "1"
    try:
        from Cython.Build import cythonize
    except ImportError:
        if required:
            raise
        print("braidmq: Cython is not there; installing without the compiled lane")
        return []
    modules = [
        Extension(
            f"braidmq.lane.{path.stem}",
            [str(path)],
            extra_compile_args=["-O3"],
            optional=not required,
        )
        for path in COMPILED
    ]
    built: list[Extension] = cythonize(
        modules,
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "annotation_typing": False},
    )
    return built


setup(ext_modules=extensions())
