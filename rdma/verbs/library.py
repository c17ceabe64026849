"""pyverbs: finding it, saying why it cannot be used, and doing what it leaves to others. Its only importer.

It links symbols of rdma-core that are private to one release. So it is the distribution's package, built together with the
rdma-core that is installed; one from an index fits only by chance.

pyverbs tells nobody which file descriptors it has opened, and its calls that wait for one hold Python's lock meanwhile. So
the descriptors are found in /proc, told not to block, and waited for by us: see `with_descriptor`.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from rdma.errors import NoVerbs, TransportBroken

if TYPE_CHECKING:
    from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
    from pyverbs.cq import CQ, CompChannel
    from pyverbs.mr import MR, DmaBufMR
    from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
    from pyverbs.qp import QP, QPCap, QPInitAttr
    from pyverbs.wr import SGE, RecvWR, SendWR

DEVICES: Final = Path("/sys/class/infiniband")
CM_DEVICE: Final = "/dev/infiniband/rdma_cm"
COMPLETIONS: Final = "anon_inode:[infinibandevent]"
"""What /proc calls a completion channel."""
_DESCRIPTORS: Final = Path("/proc/self/fd")
_ATTEMPTS: Final = 20
_INSTALL: Final = (
    "install the distribution's package (Debian, Ubuntu: 'apt install python3-pyverbs') and run kvfs by the "
    "distribution's python3; a virtual environment must be made with it and with --system-site-packages"
)
_opening = threading.Lock()


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class Library(NamedTuple):
    """What is used of pyverbs."""

    AddrInfo: type[AddrInfo]
    CMEvent: type[CMEvent]
    CMEventChannel: type[CMEventChannel]
    CMID: type[CMID]
    ConnParam: type[ConnParam]
    CompChannel: type[CompChannel]
    CQ: type[CQ]
    DmaBufMR: type[DmaBufMR]
    MR: type[MR]
    QP: type[QP]
    QPCap: type[QPCap]
    QPInitAttr: type[QPInitAttr]
    RecvWR: type[RecvWR]
    SendWR: type[SendWR]
    SGE: type[SGE]
    Error: type[PyverbsError]
    SystemError: type[PyverbsRDMAError]


def load(devices: Path = DEVICES) -> Library:
    """pyverbs, on a host that has a device for it.

    :raises NoVerbs: there is no device, no pyverbs, or one that does not fit; says what to do
    """
    if not devices.is_dir() or not any(devices.iterdir()):
        raise NoVerbs(
            "this host has no RDMA device: load the driver of its network card, or make one of any card with "
            "'modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0'"
        )
    try:
        with _quiet_logging():
            return _import()
    except ModuleNotFoundError as error:
        if error.name == "pyverbs":
            raise NoVerbs(f"this Python ({sys.executable}) has no pyverbs: {_INSTALL}") from None
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise NoVerbs(f"the installed pyverbs is not for Python {version} ({error}): {_INSTALL}") from None
    except ImportError as error:
        raise NoVerbs(f"pyverbs does not fit the installed rdma-core ({error}): {_INSTALL}") from None


def _import() -> Library:
    from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
    from pyverbs.cq import CQ, CompChannel
    from pyverbs.mr import MR, DmaBufMR
    from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
    from pyverbs.qp import QP, QPCap, QPInitAttr
    from pyverbs.wr import SGE, RecvWR, SendWR

    return Library(
        AddrInfo=AddrInfo,
        CMEvent=CMEvent,
        CMEventChannel=CMEventChannel,
        CMID=CMID,
        ConnParam=ConnParam,
        CompChannel=CompChannel,
        CQ=CQ,
        DmaBufMR=DmaBufMR,
        MR=MR,
        QP=QP,
        QPCap=QPCap,
        QPInitAttr=QPInitAttr,
        RecvWR=RecvWR,
        SendWR=SendWR,
        SGE=SGE,
        Error=PyverbsError,
        SystemError=PyverbsRDMAError,
    )


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """pyverbs configures the process's logging when it is imported, which is not its business."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def translated(library: Library, what: str) -> Iterator[None]:
    """Errors of pyverbs as ours. :raises TransportBroken: carries the system's error number"""
    try:
        yield
    except library.Error as error:
        raise broken(library, what, error) from None


def broken(library: Library, what: str, error: PyverbsError) -> TransportBroken:
    """The same, of one error: for what is done too often for a context manager."""
    if isinstance(error, library.SystemError):
        return TransportBroken(f"{what}: {_reason(error)}", error.error_code)
    return TransportBroken(f"{what}: {error}")


def _reason(error: PyverbsRDMAError) -> str:
    return os.strerror(error.error_code) if error.error_code > 0 else str(error)


def with_descriptor(library: Library, make: Callable[[], C], kind: str) -> tuple[C, int]:
    """What `make` makes, and the file descriptor that came with it, which from then on does not block.

    :param kind: what /proc calls it
    :raises NoVerbs: the system does not let us have it
    :raises TransportBroken: it cannot be found
    """
    with _opening:
        for _ in range(_ATTEMPTS):
            before = _descriptors(kind)
            made = _made(library, make)
            new = _descriptors(kind) - before
            if len(new) == 1:
                [descriptor] = new
                os.set_blocking(descriptor, False)
                return made, descriptor
            made.close()  # something else in this process opened or closed one at the same moment
    raise TransportBroken(f"the descriptor of {kind} cannot be told from others")


def _made(library: Library, make: Callable[[], C]) -> C:
    try:
        return make()
    except library.SystemError as error:
        if error.error_code in (errno.ENODEV, errno.ENOENT):
            raise NoVerbs(f"{CM_DEVICE} is missing: 'modprobe rdma_ucm'") from None
        if error.error_code in (errno.EACCES, errno.EPERM):
            raise NoVerbs(
                f"this process may not use {CM_DEVICE}: run it as root, or give its user the right to read and "
                "write /dev/infiniband"
            ) from None
        raise TransportBroken(f"opening a channel: {_reason(error)}", error.error_code) from None


def _descriptors(kind: str) -> set[int]:
    found = set()
    for entry in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed meanwhile, as the one that lists them is
            if str(entry.readlink()) == kind:
                found.add(int(entry.name))
    return found
