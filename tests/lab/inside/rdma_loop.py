"""One-sided RDMA between two connected queue pairs of this process, through pyverbs and the soft-RoCE device.

    rdma_loop ADDRESS MIB       ADDRESS is the IPv4 address of the device's network card

READs that much into memory that had zeros, WRITEs other bytes back, and compares both. Exit code 1 if any is wrong.
"""

from __future__ import annotations

import hashlib
import sys
import time
from ipaddress import IPv6Address
from pathlib import Path

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
DEVICE = "rxe0"
PIECE = 1 << 20
"""Bytes of one work request."""
SECONDS = 60


class End:
    """A queue pair, and `size` bytes of memory that the other end may read and write."""

    def __init__(self, context: Context, address: str, size: int) -> None:
        self.size = size
        self._context = context
        self._protection = PD(context)
        self._completions = CQ(context, 8)
        self.memory = MR(self._protection, size, ACCESS)
        capacity = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        how = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._completions, rcq=self._completions, cap=capacity)
        attributes = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
        attributes.qp_access_flags = ACCESS
        self.pair = QP(self._protection, how)
        self.pair.to_init(attributes)
        self.gid_index = gid_index(address)

    def connect(self, other: End) -> None:
        gid = self._context.query_gid(1, other.gid_index)
        route = GlobalRoute(dgid=gid, sgid_index=self.gid_index, hop_limit=64)
        attributes = QPAttr(port_num=1)
        attributes.dest_qp_num = other.pair.qp_num
        attributes.path_mtu = self._context.query_port(1).active_mtu
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 16
        attributes.min_rnr_timer, attributes.timeout = 12, 14
        attributes.retry_cnt = attributes.rnr_retry = 7
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attributes.qp_access_flags = ACCESS
        self.pair.to_rts(attributes)

    def move(self, opcode: int, other: End) -> None:
        """All of the memory, to or from the other end's."""
        for offset in range(0, self.size, PIECE):
            piece = SGE(self.memory.buf + offset, PIECE, self.memory.lkey)
            request = SendWR(opcode=opcode, num_sge=1, send_flags=e.IBV_SEND_SIGNALED, sg=[piece])
            request.set_wr_rdma(other.memory.rkey, other.memory.buf + offset)
            self.pair.post_send(request)
            self._complete()

    def _complete(self) -> None:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            count, completions = self._completions.poll(1)
            if count:
                if completions[0].status != e.IBV_WC_SUCCESS:
                    raise OSError(f"completed with status {completions[0].status}")
                return
        raise TimeoutError("no completion")


def gid_index(address: str) -> int:
    """Which of the device's identities is the IPv4 address, in RoCE version 2."""
    wanted = IPv6Address(f"::ffff:{address}")
    port = Path(f"/sys/class/infiniband/{DEVICE}/ports/1")
    for entry in [*port.glob("gids/*")]:
        if IPv6Address(entry.read_text().strip()) != wanted:
            continue
        if "v2" in (port / "gid_attrs/types" / entry.name).read_text():
            return int(entry.name)
    raise LookupError(f"no GID for {address}")


def content(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


def main(address: str, mebibytes: int) -> int:
    size = mebibytes << 20
    context = Context(name=DEVICE)
    near, far = End(context, address, size), End(context, address, size)
    near.connect(far)
    far.connect(near)
    far.memory.write(content("read", size), size)
    near.move(e.IBV_WR_RDMA_READ, far)
    read = near.memory.read(size, 0) == content("read", size)
    near.memory.write(content("written", size), size)
    near.move(e.IBV_WR_RDMA_WRITE, far)
    written = far.memory.read(size, 0) == content("written", size)
    print(f"READ {'right' if read else 'WRONG'}, WRITE {'right' if written else 'WRONG'}")
    return 0 if read and written else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
