"""The one place where an exception becomes an answer to the kernel."""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pyfuse3

from blockdev import errors as block
from kvfs import errors as product

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TABLE: dict[type[Exception], int] = {
    block.NoSpace: errno.ENOSPC,
    block.RecordTooLarge: errno.ENOSPC,
    block.Exists: errno.EEXIST,
    block.Missing: errno.ENOENT,
    block.NotEmpty: errno.ENOTEMPTY,
    block.NotDirectory: errno.ENOTDIR,
    block.IsDirectory: errno.EISDIR,
    block.BadName: errno.EINVAL,
    block.ReadOnly: errno.EROFS,
    block.PoolClosed: errno.ENODEV,
    block.LeaseLost: errno.EIO,
    block.Unavailable: errno.EIO,
    block.IntegrityError: errno.EIO,
    block.DeviceError: errno.EIO,
    block.BlockError: errno.EIO,
    product.FramesError: errno.EIO,
}
"""An exception counts as the nearest of its bases that is listed. What makes a file unreadable is a miss to who opens
it (`openfiles`), and EIO only to who has it open."""


def errno_of(error: Exception) -> int | None:
    """The number to answer with; None for what should never happen."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if isinstance(error, block.WriteFailed) and error.errno == errno.ENOSPC:
        return errno.ENOSPC
    for base in type(error).__mro__:
        if base in TABLE:
            return TABLE[base]
    return None


def answers(handler: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have a request handler raise nothing but FUSEError, which is all that pyfuse3 takes."""

    @functools.wraps(handler)
    async def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(*args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            number = errno_of(error)
            if number is None:
                log.exception("%s failed", handler.__name__)
                number = errno.EIO
            raise pyfuse3.FUSEError(number) from error  # the mount lives on, whatever it was

    return translated
