from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.pd import PD
from pyverbs.wr import RecvWR, SendWR

class QPCap:
    def __init__(
        self,
        *,
        max_send_wr: int = 1,
        max_recv_wr: int = 10,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
    ) -> None: ...

class QPInitAttr:
    def __init__(
        self, *, qp_type: int, scq: CQ | None = None, rcq: CQ | None = None, cap: QPCap | None = None
    ) -> None: ...

class QPAttr:
    def __init__(self, *, qp_state: int = ..., port_num: int = 1) -> None: ...
    qp_access_flags: int
    dest_qp_num: int
    path_mtu: int
    max_dest_rd_atomic: int
    max_rd_atomic: int
    min_rnr_timer: int
    timeout: int
    retry_cnt: int
    rnr_retry: int
    ah_attr: AHAttr

class QP:
    def __init__(self, creator: PD, init_attr: QPInitAttr, qp_attr: QPAttr | None = None) -> None: ...
    @property
    def qp_num(self) -> int: ...
    def modify(self, qp_attr: QPAttr, mask: int) -> None: ...
    def to_init(self, qp_attr: QPAttr) -> None: ...
    def to_rts(self, qp_attr: QPAttr) -> None: ...
    def post_send(self, wr: SendWR) -> None: ...
    def post_recv(self, wr: RecvWR) -> None: ...
    def close(self) -> None: ...
