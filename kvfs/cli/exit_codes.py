"""What a failed command exits with: one code for each class of error, and nowhere else a literal.

0 is success, 2 a command line that click refuses, 130 an interrupt. Codes are API: they are never reused for another
class. A class that is not in the table is a mistake, which a test finds by walking the trees.
"""

from __future__ import annotations

import builtins

from blockdev import errors as block
from kvfs import errors as kvfs

OK = 0
USAGE = 2
INTERRUPTED = 130

EXIT_CODES: dict[type[Exception], int] = {
    kvfs.KvfsError: 1,
    block.BlockError: 1,
    OSError: 3,
    # what the operator asked for
    kvfs.ConfigError: 10,
    kvfs.StateError: 11,
    kvfs.UnknownPool: 12,
    kvfs.PoolExists: 13,
    kvfs.MissingDevice: 14,
    kvfs.NoObject: 15,
    kvfs.BadTrace: 16,
    # mounts
    kvfs.MountError: 20,
    kvfs.MountPointMissing: 21,
    kvfs.MountPointUnusable: 22,
    kvfs.MountPointBusy: 23,
    kvfs.NoFuse: 24,
    kvfs.AllowOtherRefused: 25,
    kvfs.NotMounted: 26,
    kvfs.UnmountBusy: 27,
    kvfs.MountFailed: 28,
    # a running mount
    kvfs.ControlError: 30,
    kvfs.NotRunning: 31,
    kvfs.DeadMount: 32,
    kvfs.ControlVersion: 33,
    kvfs.ControlTimeout: 34,
    kvfs.RemoteError: 35,
    kvfs.FramesError: 36,
    kvfs.NoFrames: 37,
    kvfs.FramesClosed: 38,
    # devices
    block.DeviceError: 40,
    block.DeviceTimeout: 41,
    block.DeviceClosed: 42,
    block.DeviceLost: 43,
    block.Unavailable: 44,
    block.NoSpace: 45,
    block.DeviceGivenUp: 46,
    block.WriteFailed: 47,
    # what is on the media
    block.FormatError: 50,
    block.BadSuperblock: 51,
    block.UnknownVersion: 52,
    block.ForeignSignature: 53,
    block.DeviceMismatch: 54,
    block.IntegrityError: 55,
    block.ChecksumError: 56,
    block.Raced: 57,
    kvfs.DamageFound: 58,
    # who may write
    block.PoolBusy: 60,
    block.WrongDomain: 61,
    block.LeaseLost: 62,
    block.ReadOnly: 63,
    block.PoolClosed: 64,
    # names
    block.NameConflict: 70,
    block.Exists: 71,
    block.Missing: 72,
    block.NotEmpty: 73,
    block.NotDirectory: 74,
    block.IsDirectory: 75,
    block.RecordTooLarge: 76,
    block.BadName: 77,
    # what a storage node exports
    kvfs.ExportError: 80,
    kvfs.NoTarget: 81,
    kvfs.NoConfigfs: 82,
    kvfs.NotRoot: 83,
    kvfs.UnknownExport: 84,
    kvfs.AddressInUse: 85,
    kvfs.AddressUnusable: 86,
    kvfs.ExportedElsewhere: 87,
    kvfs.DeviceHeld: 88,
    kvfs.NoAuthentication: 89,
    kvfs.ExportFailed: 90,
    kvfs.RestoreIncomplete: 91,
    # targets over fabrics
    block.FabricsError: 100,
    block.NoNvmeCli: 101,
    block.FabricsTimeout: 102,
    block.TargetUnreachable: 103,
    block.WrongTransport: 104,
    block.HostRefused: 105,
    block.KeyRefused: 106,
    # the Cache API
    kvfs.CacheError: 110,
    kvfs.CacheClosed: 111,
    kvfs.BadKey: 112,
    kvfs.WrongNamespace: 113,
    kvfs.BadBuffer: 114,
    kvfs.BadAttention: 115,
    kvfs.NoNumpy: 116,
    kvfs.RecheckRefused: 117,
}

_BY_NAME = {error.__name__: code for error, code in EXIT_CODES.items()}
_BY_NAME |= {
    name: EXIT_CODES[OSError]
    for name, found in vars(builtins).items()
    if isinstance(found, type) and issubclass(found, OSError)
}


def exit_code(error: BaseException) -> int:
    """The code of the nearest class in the table, 1 for what is not ours. An error that another process reported counts
    as what it was there.
    """
    if isinstance(error, kvfs.RemoteError) and error.kind in _BY_NAME:
        return _BY_NAME[error.kind]
    return next((EXIT_CODES[cls] for cls in type(error).__mro__ if cls in EXIT_CODES), 1)
