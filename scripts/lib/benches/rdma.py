"""Reads over RDMA by kvfs itself against O_DIRECT reads through the kernel's initiator: same target, same run, in turns.

In one machine of the lab, which is target and host at once: soft-RoCE, and a memory disk behind the kernel's target. What is
seen there compares the paths; it says nothing of network cards.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from scripts.lib.lab.image import ensure
from scripts.lib.lab.lab import Lab

if TYPE_CHECKING:
    from scripts.lib.bench import Rows

FLOOR = 0.9
NQN = "nqn.2026-11.org.example:bench"
PORT = 4421
DISK_KIB = 160 << 10
SECONDS = 600
_PREPARE = f"""
modprobe -a nvmet nvmet-rdma nvme-rdma nvme-fabrics
modprobe brd rd_nr=1 rd_size={DISK_KIB}
head -c {DISK_KIB}K /dev/urandom > /dev/ram0
kvfs export add {NQN} /dev/ram0 --port rdma:$ADDRESS:{PORT} --host $(cat /etc/nvme/hostnqn) --force
kvfs target connect nvme+rdma://$ADDRESS:{PORT}/{NQN}
"""


def run(rows: Rows, options: argparse.Namespace) -> None:
    """Measure."""
    with Lab(ensure(lambda _: None)) as lab:
        guest = lab.guest("bench", memory=2048)
        lab.boot(guest)
        guest.rdma_up()
        guest.run("bash", "-euc", _PREPARE, env={"ADDRESS": guest.address}, seconds=SECONDS)
        uri = f"nvme+rdma://{guest.address}:{PORT}/{NQN}/1"
        rounds = "3" if options.quick else "7"
        said = guest.run("python3", "-m", "scripts.lib.rdma_reads", uri, rounds, seconds=SECONDS)
    for name, unit, value in json.loads(said.stdout):
        rows.add(name, unit, value, floor=FLOOR if unit == "ratio" else None)
