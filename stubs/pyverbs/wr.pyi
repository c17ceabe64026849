class SGE:
    def __init__(self, addr: int, length: int, lkey: int) -> None: ...

class RecvWR:
    def __init__(self, *, wr_id: int = 0, num_sge: int = 0, sg: list[SGE] | None = None) -> None: ...

class SendWR:
    def __init__(
        self,
        *,
        wr_id: int = 0,
        opcode: int = ...,
        num_sge: int = 0,
        sg: list[SGE] | None = None,
        send_flags: int = ...,
    ) -> None: ...
    def set_wr_rdma(self, rkey: int, addr: int) -> None: ...
