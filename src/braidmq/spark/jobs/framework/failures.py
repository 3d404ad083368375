"""Turns the failure of a job into one actionable sentence: Spark wraps the reason in stack traces of two languages."""

from __future__ import annotations

import re
from typing import Final

from braidmq.base.errors import BraidError, Unavailable, UsageError

# The last line of a Python traceback inside a Java message: one of our exception classes and its message.
_OURS: Final = re.compile(r"^\s*(?:Caused by: )?braidmq\.[\w.]+\.(\w+): (.+)$", re.M)
_PYTHON: Final = re.compile(r"^\s*(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", re.M)
_RETRY: Final = re.compile(r" \(try again in [\d.]+ s\)$")
_NOISE: Final = ("Py4JJavaError", "Py4JError", "PythonException", "StreamingQueryException", "SparkException")
AGAIN: Final = "run the same command again to continue"
AGAIN_FROM_CHECKPOINT: Final = f"the checkpoint keeps what is done; {AGAIN}"


def explain(error: BaseException, again: str) -> BraidError:
    """Explain an error of Spark or of a job: our own message if it contains one, and how to continue (`again`)."""
    if isinstance(error, BraidError):
        return error
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, detail = ours[-1]
        return Unavailable(f"{_RETRY.sub('', detail)}; {again}") if kind == "Unavailable" else UsageError(detail)
    lowered = text.lower()
    if "no space left on device" in lowered:
        return UsageError("a disk is full", f"free space for the output and for Spark's scratch files; {again}")
    if "outofmemoryerror" in lowered or "java heap space" in lowered:
        return UsageError(
            "Spark ran out of memory", f"give --conf spark.driver.memory=4g, or smaller batches with --batch-bytes; {again}"
        )
    if "differs from the existing" in lowered or "incompatible schema" in lowered or "state schema" in lowered:
        hint = "use the options of the first run, or another --checkpoint and another output"
        return UsageError("the checkpoint belongs to a query with other columns or options", hint)
    if "concurrentmodification" in lowered or "multiple streaming queries" in lowered:
        return UsageError("another job uses the same checkpoint", "wait for it, or use another --checkpoint")
    told = [f"{kind}: {detail}" for kind, detail in _PYTHON.findall(text) if kind not in _NOISE]
    reason = told[-1] if told else next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return UsageError(f"Spark failed: {reason.strip()[:500]}; {again}")
