"""What a controller answers, in words. Pure.

NVMe Base 2.0, section 3.3.3.2.1 (Status Field): a type (SCT, 3 bits) and a code (SC, 8 bits) of that type; the codes
are listed in figures 94 to 99, those of reads and writes in NVM Command Set 1.0.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class StatusType(IntEnum):
    """SCT: whose list the code is from."""

    GENERIC = 0
    COMMAND = 1
    MEDIA = 2
    PATH = 3
    VENDOR = 7


_NAMES: dict[StatusType, dict[int, str]] = {
    StatusType.GENERIC: {
        0x00: "success",
        0x01: "invalid command opcode",
        0x02: "invalid field in command",
        0x03: "command identifier in use",
        0x04: "data transfer error",
        0x05: "aborted by loss of power",
        0x06: "internal error",
        0x07: "aborted as was asked",
        0x08: "aborted: its submission queue was deleted",
        0x09: "aborted: a fused command failed",
        0x0A: "aborted: a fused command is missing",
        0x0B: "invalid namespace or format",
        0x0C: "command sequence error",
        0x0D: "invalid SGL segment descriptor",
        0x0E: "invalid number of SGL descriptors",
        0x0F: "data SGL length invalid",
        0x10: "metadata SGL length invalid",
        0x11: "SGL descriptor type invalid",
        0x12: "invalid use of controller memory buffer",
        0x13: "PRP offset invalid",
        0x14: "atomic write unit exceeded",
        0x15: "operation denied",
        0x16: "SGL offset invalid",
        0x18: "host identifier inconsistent format",
        0x19: "keep alive timer expired",
        0x1A: "keep alive timeout invalid",
        0x1B: "aborted by preempt and abort",
        0x1C: "sanitize failed",
        0x1D: "sanitize in progress",
        0x1E: "SGL data block granularity invalid",
        0x1F: "command not supported for queue in controller memory buffer",
        0x20: "namespace is write protected",
        0x21: "command interrupted",
        0x22: "transient transport error",
        0x24: "admin command media not ready",
        0x80: "LBA out of range",
        0x81: "capacity exceeded",
        0x82: "namespace not ready",
        0x83: "reservation conflict",
        0x84: "format in progress",
    },
    StatusType.COMMAND: {
        0x00: "completion queue invalid",
        0x01: "invalid queue identifier",
        0x02: "invalid queue size",
        0x03: "abort command limit exceeded",
        0x05: "asynchronous event request limit exceeded",
        0x06: "invalid firmware slot",
        0x09: "invalid log page",
        0x0A: "invalid format",
        0x0D: "feature identifier not saveable",
        0x0E: "feature not changeable",
        0x0F: "feature not namespace specific",
        # 80h and up mean other things for Fabrics commands (NVMe Base 2.0, section 6): see `_FABRICS`.
        0x80: "conflicting attributes",
        0x81: "invalid protection information",
        0x82: "attempted write to read only range",
        0x83: "command size limit exceeded",
    },
    StatusType.MEDIA: {
        0x80: "write fault",
        0x81: "unrecovered read error",
        0x82: "end-to-end guard check error",
        0x83: "end-to-end application tag check error",
        0x84: "end-to-end reference tag check error",
        0x85: "compare failure",
        0x86: "access denied",
        0x87: "deallocated or unwritten logical block",
        0x88: "end-to-end storage tag check error",
    },
    StatusType.PATH: {
        0x00: "internal path error",
        0x01: "asymmetric access persistent loss",
        0x02: "asymmetric access inaccessible",
        0x03: "asymmetric access transition",
        0x60: "controller pathing error",
        0x70: "host pathing error",
        0x71: "command aborted by host",
    },
}

_FABRICS = {
    0x80: "incompatible format",
    0x81: "controller busy",
    0x82: "connect invalid parameters",
    0x83: "connect restart discovery",
    0x84: "connect invalid host",
    0x85: "invalid queue type",
    0x90: "discover restart",
    0x91: "authentication required",
}
"""Of Fabrics commands: NVMe Base 2.0, figure 97, and section 6.3 (Connect)."""


class Status(NamedTuple):
    """The status of a completion.

    :ivar more: the error log page has more about it (M)
    :ivar final: the same command would fail again (DNR, do not retry)
    """

    type: int
    code: int
    more: bool = False
    final: bool = False

    @property
    def ok(self) -> bool:
        return self.type == StatusType.GENERIC and self.code == 0

    def describe(self, *, fabrics: bool = False) -> str:
        """In words, with the numbers.

        :param fabrics: it is the answer to a Fabrics command, whose codes have other names
        """
        number = f"status {self.type:x}h/{self.code:02x}h"
        name = _FABRICS.get(self.code) if fabrics and self.type == StatusType.COMMAND else None
        if name is None and self.type in _NAMES:
            name = _NAMES[StatusType(self.type)].get(self.code)
        if name is None:
            name = "vendor specific" if self.type == StatusType.VENDOR else "unknown"
        return f"{name} ({number})"

    def pack(self) -> int:
        """The 16 bits at the end of a completion; the phase tag, which Fabrics do not use, is 0."""
        return self.code << 1 | self.type << 9 | self.more << 14 | self.final << 15

    @classmethod
    def unpack(cls, field: int) -> Status:
        return cls(field >> 9 & 7, field >> 1 & 0xFF, bool(field >> 14 & 1), bool(field >> 15 & 1))


SUCCESS = Status(StatusType.GENERIC, 0)
INVALID_OPCODE = Status(StatusType.GENERIC, 0x01)
INVALID_FIELD = Status(StatusType.GENERIC, 0x02)
AUTHENTICATION_REQUIRED = Status(StatusType.COMMAND, 0x91)
