"""rdma: moving extents between NVMe-oF targets and registered memory. Empty until the RDMA path lands.

There is no code here yet; pools use the kernel's block devices, NVMe-oF ones included. The package exists so that
the layering (`kvfs` above, never beside `blockdev`) is enforced from the start.
"""

from __future__ import annotations
