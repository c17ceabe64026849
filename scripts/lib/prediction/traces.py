"""Which traces of requests to measure with; `kvfs.request_traces` reads them."""

from __future__ import annotations

import os
from pathlib import Path


def named(trace: Path | None) -> list[Path]:
    """A trace that was named, or all that are in the folder KVFS_TRACES."""
    folder = os.environ.get("KVFS_TRACES")
    return [trace] if trace else sorted(Path(folder).glob("*.jsonl*")) if folder else []
