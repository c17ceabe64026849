"""Memory of this host that stays where it is: one mapping, faulted in at once, in huge pages where allowed, locked if asked.

A transfer that the processor does not see (O_DIRECT, RDMA) needs pages that are there and do not move, and is faster the
fewer of them there are.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import resource
from contextlib import suppress
from typing import Final

from rdma.errors import LockRefused

PAGE: Final = 4096
"""Bytes; memory for transfers begins on a multiple of it."""
_HUGE_PAGE: Final = 2 << 20
# Linux's numbers; the mmap module of Python 3.11 has no names for them.
_MADV_WIPEONFORK: Final = 18
_MADV_POPULATE_WRITE: Final = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mlock.argtypes = _libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def host_memory(size: int, *, huge_pages: bool = True, lock: bool = False) -> memoryview:
    """`size` zero bytes that begin on a huge page. They go back to the system with the last view of them: an I/O that
    is stuck in a thread holds its view, so its memory is never given to anybody else.

    :param size: bytes
    :param huge_pages: ask for transparent huge pages; where they are not allowed, it works without
    :param lock: keep them from being swapped out
    :raises LockRefused: with `lock`: more than the system lets this process lock
    :raises OSError: the system has not that much memory
    """
    # Private, since the system grants shared mappings transparent huge pages only when set up for it.
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE_PAGE
    _prepare(memory, start, size, huge_pages=huge_pages)
    view = memoryview(memory)[start : start + size]
    if lock:
        _lock(view)
    return view


def _prepare(memory: mmap.mmap, start: int, size: int, *, huge_pages: bool) -> None:
    # A child of fork() gets zeros: if it shared these pages copy-on-write while the kernel reads into them, the
    # data could land in the copy that only the child sees. Advice that a kernel lacks is no error.
    for advice in (_MADV_WIPEONFORK, mmap.MADV_DONTDUMP):
        with suppress(OSError):
            memory.madvise(advice, start, size)
    if huge_pages:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE, start, size)
    try:
        memory.madvise(_MADV_POPULATE_WRITE, start, size)
    except OSError:
        for page in range(start, start + size, PAGE):
            memory[page] = 0


def _lock(view: memoryview) -> None:
    if _libc.mlock(address_of(view), view.nbytes):
        reason = ctypes.get_errno()
        if reason not in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
            raise OSError(reason, "mlock failed")
        raise lock_refused(view.nbytes)


def lock_refused(size: int) -> LockRefused:
    """The error that says that `size` bytes cannot be locked, why, and what to do."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    allowed = "no limit" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
    return LockRefused(
        f"the system does not let this process lock {size >> 10} KiB of memory (RLIMIT_MEMLOCK is {allowed}): raise it with "
        f"'ulimit -l {size >> 10}' in the shell, or LimitMEMLOCK=infinity in the service's unit"
    )


def unlock(view: memoryview) -> None:
    """Let memory that was locked be swapped out again: its pages may live on for as long as somebody holds a view."""
    _libc.munlock(address_of(view), view.nbytes)


_python = ctypes.PyDLL(None)  # of our own: what is declared on ctypes.pythonapi is everybody's
_get_buffer = _python.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
_release_buffer = _python.PyBuffer_Release
_release_buffer.argtypes = (ctypes.c_void_p,)
_release_buffer.restype = None
_PY_BUFFER_WORDS: Final = 11  # at least; the first is the address (stable ABI since Python 3.11)


def address_of(view: memoryview) -> int:
    """Where contiguous bytes are in this process's address space."""
    if not view.readonly and view.nbytes:
        return ctypes.addressof(ctypes.c_char.from_buffer(view))
    info = (ctypes.c_void_p * _PY_BUFFER_WORDS)()
    _get_buffer(view, info, 0)
    address = info[0]
    _release_buffer(info)
    return int(address or 0)
