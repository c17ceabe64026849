"""Numbers of the verbs and rdma_cm interfaces. They belong to the kernel's and rdma-core's ABI and never change, while the
modules of pyverbs that have them are called otherwise in every other release. Pure.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final

RELIABLE_CONNECTION: Final = 2
"""IBV_QPT_RC."""
PORT_SPACE_TCP: Final = 0x0106
"""RDMA_PS_TCP: in which targets listen."""
SEND: Final = 2
"""IBV_WR_SEND."""
SIGNALED: Final = 2
"""IBV_SEND_SIGNALED."""


class PairState(IntEnum):
    """IBV_QPS: what a queue pair may do."""

    INIT = 1
    READY_TO_RECEIVE = 2
    READY_TO_SEND = 3


class Access(IntFlag):
    """IBV_ACCESS: who may do what to memory. It may always be read from here."""

    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4


class CmEvent(IntEnum):
    """RDMA_CM_EVENT: what happens to a connection."""

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


class WorkStatus(IntEnum):
    """IBV_WC: how a send or a receive ended."""

    SUCCESS = 0
    LOCAL_LENGTH_ERROR = 1
    LOCAL_QP_OPERATION_ERROR = 2
    LOCAL_EE_CONTEXT_OPERATION_ERROR = 3
    LOCAL_PROTECTION_ERROR = 4
    FLUSHED = 5
    MEMORY_WINDOW_BIND_ERROR = 6
    BAD_RESPONSE = 7
    LOCAL_ACCESS_ERROR = 8
    REMOTE_INVALID_REQUEST = 9
    REMOTE_ACCESS_ERROR = 10
    REMOTE_OPERATION_ERROR = 11
    NO_ANSWER_TO_RETRIES = 12
    RECEIVER_NOT_READY = 13
    LOCAL_RDD_VIOLATION = 14
    REMOTE_INVALID_READ_REQUEST = 15
    REMOTE_ABORT = 16
    INVALID_EE_CONTEXT_NUMBER = 17
    INVALID_EE_CONTEXT_STATE = 18
    FATAL = 19
    RESPONSE_TIMEOUT = 20
    GENERAL_ERROR = 21


def in_words(number: IntEnum) -> str:
    """For people: the name, and the number as the system's own documents have it."""
    return f"{number.name.lower().replace('_', ' ')} ({number.value})"
