"""Real network devices behind the seam of `rdma.transport`: RDMA through the distribution's pyverbs."""

from __future__ import annotations

from rdma.verbs.fabric import VerbsFabric, open_verbs
from rdma.verbs.library import load

__all__ = ["VerbsFabric", "load", "open_verbs"]
