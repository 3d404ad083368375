"""The plain Python form of a module that may be compiled, to compare both."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from braidmq import lane


def plain_form(name: str) -> ModuleType:
    """The uncompiled twin of ``braidmq.lane.<name>``. Without a build this is the module itself, loaded once more."""
    path = Path(lane.__file__).parent / (name.replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location("plain_" + path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
