"""Builds the compiled lane; everything else is in pyproject.toml.

Without a compiler, Cython or Python's headers the installation still succeeds and the broker runs on the same modules
uncompiled. ``BRAIDMQ_PURE=1`` skips the build, ``BRAIDMQ_COMPILED=1`` turns a failed one into an error.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

LANE = Path("src/braidmq/lane")

# A .pyx is compiled, and the .py of the same name beside it is its uncompiled twin; any other .py is compiled if it has a .pxd.
_PYX = sorted(LANE.glob("*/*.pyx"))
_PY = sorted(path for path in LANE.glob("*/*.py") if path.with_suffix(".pxd").exists() and not path.with_suffix(".pyx").exists())
COMPILED = [*_PYX, *_PY]

IS_SKIPPED = os.environ.get("BRAIDMQ_PURE") == "1"
IS_REQUIRED = os.environ.get("BRAIDMQ_COMPILED") == "1"


class AllOrNothing(build_ext):
    """Compiled modules use each other's C structures, so that one alone is of no use: if one fails, none is kept."""

    def build_extensions(self) -> None:
        """Build them all; a failure is only told, unless the compiled form is required."""
        try:
            super().build_extensions()
        except Exception as problem:
            if IS_REQUIRED:
                raise
            print(f"braidmq: installing without the compiled lane, many times slower: {problem}")
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []


def extensions() -> list[Extension]:
    """The extension modules to build: none if asked so or if Cython is not there."""
    if IS_SKIPPED or not COMPILED:
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if IS_REQUIRED:
            raise
        print("braidmq: installing without the compiled lane, many times slower: Cython is not there")
        return []
    modules = [
        Extension(f"braidmq.lane.{path.parent.name}.{path.stem}", [str(path)], extra_compile_args=["-O3"]) for path in COMPILED
    ]
    directives = {"language_level": 3, "annotation_typing": False}
    built: list[Extension] = cythonize(modules, build_dir="build/cython", compiler_directives=directives)
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": AllOrNothing})
