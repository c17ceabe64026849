"""NVMe over fabrics through the kernel: nvme-cli connects, sysfs tells what is there. Nothing here moves data.

- `names`: targets and namespaces as people write them; pure
- `client`: nvme-cli's commands as calls; `running` starts the program, `parse` reads what it prints into `records`,
  `credentials` says who we are and keeps keys off the command line
- `sysfs`: connections, namespaces and time-outs as the kernel has them
"""

from blockdev.nvme.client import NvmeCli
from blockdev.nvme.credentials import HostIdentity, read_host_identity
from blockdev.nvme.names import (
    Credentials,
    DataPath,
    NamespaceName,
    Portal,
    Target,
    Transport,
    is_uri,
    parse_namespace,
    parse_target,
)
from blockdev.nvme.records import Timers
from blockdev.nvme.running import CommandRunner, Completed, run_nvme
from blockdev.nvme.sysfs import CLOSED, LIVE, Controller, Namespace, Subsystem, Sysfs

__all__ = [
    "CLOSED",
    "LIVE",
    "CommandRunner",
    "Completed",
    "Controller",
    "Credentials",
    "DataPath",
    "HostIdentity",
    "Namespace",
    "NamespaceName",
    "NvmeCli",
    "Portal",
    "Subsystem",
    "Sysfs",
    "Target",
    "Timers",
    "Transport",
    "is_uri",
    "parse_namespace",
    "parse_target",
    "read_host_identity",
    "run_nvme",
]
