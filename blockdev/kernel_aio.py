"""The kernel's asynchronous I/O, through its system calls: transfers that are begun in one call and take no thread.

Only those that can be begun without waiting: where the kernel would have to wait for room in the device's queue, for
memory or for a lock, it says so instead; or what is read or written lies in memory. The only module that knows the calls'
numbers and structures.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from contextlib import suppress
from enum import IntEnum

from blockdev.memory import address_of

_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Of io_setup, io_destroy, io_getevents and io_submit, by machine."""
_TELL_EVENTFD = 1
_NOWAIT = 8
_REQUEST = struct.Struct("=QIiHhIQQqQII")
"""struct iocb: token, key, flags of the call, operation, priority, descriptor, address, length, offset, nothing, flags,
eventfd"""
_EVENT = struct.Struct("=QQqq")
"""struct io_event: token, address of the request, result, nothing"""
_AT_ONCE = 32
_SHORT = 1 << 16
"""Bytes up to which a call takes less time than to give Python's lock away and get it back."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC_WITH_LOCK = ctypes.PyDLL(None, use_errno=True)


class Operation(IntEnum):
    """As the kernel numbers them."""

    READ = 0
    WRITE = 1


class AioQueue:
    """Transfers under way on any descriptors. Any thread may begin one, one at a time may reap.

    :param depth: most transfers under way
    :ivar fd: becomes readable when some have ended; it does not block
    :raises OSError: the system does not have it, or not for so many
    """

    def __init__(self, depth: int) -> None:
        try:
            self._setup, self._destroy, self._get, self._submit = _NUMBERS[platform.machine()]
        except KeyError:
            raise OSError(errno.ENOSYS, "no asynchronous I/O on this machine") from None
        self._context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_uint(depth), ctypes.byref(self._context))
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events = ctypes.create_string_buffer(_EVENT.size * _AT_ONCE)

    def begin(
        self,
        operation: Operation,
        fd: int,
        offset: int,
        buffer: memoryview,
        token: int,
        *,
        in_memory: bool = False,
    ) -> None:
        """Begin to read or write. The buffer is the kernel's until the token comes back.

        :param in_memory: the file is one in memory, for which nothing need be waited
        :raises OSError: it has not begun; EAGAIN if it would have to wait, EOPNOTSUPP if it always would
        """
        request = ctypes.create_string_buffer(
            _REQUEST.pack(
                token, 0, 0 if in_memory else _NOWAIT, operation, 0, fd,
                address_of(buffer), buffer.nbytes, offset, 0, _TELL_EVENTFD, self.fd,
            ),
            _REQUEST.size,
        )  # fmt: skip
        pointer = ctypes.c_void_p(ctypes.addressof(request))
        libc = _LIBC_WITH_LOCK if buffer.nbytes <= _SHORT else _LIBC
        self._call(self._submit, self._context, ctypes.c_long(1), ctypes.byref(pointer), libc=libc)

    def reap(self) -> list[tuple[int, int]]:
        """Tokens of the transfers that have ended, each with its bytes, or a negative errno. Never waits."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        ended: list[tuple[int, int]] = []
        while True:
            count = self._call(
                self._get, self._context, ctypes.c_long(0), ctypes.c_long(_AT_ONCE), self._events, None
            )
            ended += ((token, result) for token, _, result, _ in self._entries(count))
            if count < _AT_ONCE:
                return ended

    def _entries(self, count: int) -> list[tuple[int, ...]]:
        return [_EVENT.unpack_from(self._events, _EVENT.size * number) for number in range(count)]

    def close(self) -> None:
        """Nothing may be under way: else this waits for it."""
        self._call(self._destroy, self._context, libc=_LIBC)
        os.close(self.fd)

    @staticmethod
    def _call(number: int, *arguments: object, libc: ctypes.CDLL = _LIBC_WITH_LOCK) -> int:
        result: int = libc.syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
