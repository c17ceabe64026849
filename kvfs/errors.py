"""What can go wrong above the pool. One tree; the CLI gives every class its exit code in `kvfs.cli.exit_codes`.

    KvfsError
    ├── ConfigError            a configuration file or option that cannot be used
    ├── StateError             the state directory does not hold what was asked for
    │   ├── UnknownPool        no pool of that name
    │   ├── PoolExists         a pool of that name is there already
    │   └── MissingDevice      a device named on the command line, or none of a pool's devices, is there
    ├── NoObject               the path names nothing in the pool
    ├── BadTrace               a file is no trace
    ├── MountError             the mount could not be made or removed
    │   ├── MountPointMissing
    │   ├── MountPointUnusable not a directory, or not empty
    │   ├── MountPointBusy     something is mounted there already
    │   ├── NoFuse             this machine cannot mount: no /dev/fuse, no fusermount3
    │   ├── AllowOtherRefused  /etc/fuse.conf does not permit it
    │   ├── NotMounted         not a mount point, or not one of ours
    │   ├── UnmountBusy        files in it are open
    │   └── MountFailed        any other refusal, or the mount's process ended before it answered
    ├── ControlError           a running mount could not be asked
    │   ├── NotRunning         the pool is not mounted
    │   ├── DeadMount          its process is gone without having unmounted
    │   ├── ControlVersion     the running mount speaks another version of the protocol
    │   ├── ControlTimeout     it does not answer
    │   └── RemoteError        it answered with an error of its own, whose class it names
    ├── FramesError            the DRAM tier cannot serve
    │   ├── NoFrames           every frame is pinned and none came free in time: a miss
    │   └── FramesClosed       it was closed meanwhile
    ├── CacheError             the Cache API was used in a way that it cannot serve
    │   ├── CacheClosed        after its block had ended
    │   ├── BadKey             a key that names nothing that could be there
    │   ├── WrongNamespace     a key of another namespace
    │   ├── BadBuffer          memory that is too small, read-only, not in one piece, or not of this host
    │   ├── RecheckRefused     nothing can go straight into memory of a GPU here
    │   ├── BadAttention       masses, queries, keys or a budget that do not fit
    │   └── NoNumpy            numpy is not installed, which sketches of attention need
    ├── DamageFound            a scrub found data that cannot be read
    └── ExportError            what a storage node exports could not be changed
        ├── NoTarget           the kernel's NVMe target, nvmet, is not loaded
        ├── NoConfigfs         the file system by which it is configured is not mounted
        ├── NotRoot            only root may
        ├── UnknownExport      no export of that name, or it has no such part
        ├── AddressInUse       something else listens there
        ├── AddressUnusable    not an address of this node, or not with that transport
        ├── ExportedElsewhere  the device, or the name, is in use by another export
        ├── DeviceHeld         mounted, swap, or part of another volume
        ├── NoAuthentication   this kernel cannot check keys
        ├── ExportFailed       the kernel refused something else
        └── RestoreIncomplete  some of the exports are not in effect

Every message is one line: what is wrong, and what to do.
"""

from __future__ import annotations


class KvfsError(Exception):
    """Base of everything that kvfs raises on purpose."""


class ConfigError(KvfsError):
    """A configuration file or option that cannot be used; the message names the file and the line."""


class StateError(KvfsError):
    """The state directory does not hold what was asked for."""


class UnknownPool(StateError):
    """No pool of that name is known here."""


class PoolExists(StateError):
    """A pool of that name is there already."""


class MissingDevice(StateError):
    """A device that is needed is not there."""


class NoObject(KvfsError):
    """The path names nothing in the pool."""


class BadTrace(KvfsError):
    """A file is neither a recorded trace nor one of requests in a known schema, or it is of a newer version."""


class MountError(KvfsError):
    """The mount could not be made or removed."""


class MountPointMissing(MountError):
    """The directory to mount on does not exist."""


class MountPointUnusable(MountError):
    """What should be mounted on is not a directory, or not an empty one."""


class MountPointBusy(MountError):
    """Something is mounted there already."""


class NoFuse(MountError):
    """This machine cannot mount: /dev/fuse or fusermount3 is missing or closed to us."""


class AllowOtherRefused(MountError):
    """The system does not let this user open the mount to others."""


class NotMounted(MountError):
    """Not a mount point, or a mount of something else."""


class UnmountBusy(MountError):
    """Files of the mount are open."""


class MountFailed(MountError):
    """The mount could not be made for another reason."""


class ControlError(KvfsError):
    """A running mount could not be asked."""


class NotRunning(ControlError):
    """The pool is not mounted by any process here."""


class DeadMount(ControlError):
    """The mount's process is gone without having unmounted."""


class ControlVersion(ControlError):
    """The running mount speaks another version of the control protocol."""


class ControlTimeout(ControlError):
    """The running mount does not answer."""


class RemoteError(ControlError):
    """The running mount answered with an error.

    :ivar kind: the name of the error's class over there
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class FramesError(KvfsError):
    """The DRAM tier cannot serve."""


class NoFrames(FramesError):
    """Every frame is pinned, and none came free within the time allowed."""


class FramesClosed(FramesError):
    """The DRAM tier is closed."""


class CacheError(KvfsError):
    """The Cache API was used in a way that it cannot serve."""


class CacheClosed(CacheError):
    """The cache is closed."""


class BadKey(CacheError):
    """The key names nothing that could be there."""


class WrongNamespace(CacheError):
    """The key is of another namespace than the cache."""


class BadBuffer(CacheError):
    """The caller's memory cannot be used."""


class RecheckRefused(CacheError):
    """Extents cannot go from devices straight into memory of a GPU here."""


class BadAttention(CacheError):
    """What was said of attention, or asked by it, does not fit."""


class NoNumpy(CacheError):
    """Sketches of attention need numpy, which is not installed."""


class DamageFound(KvfsError):
    """A scrub found data that cannot be read."""


class ExportError(KvfsError):
    """What a storage node exports could not be changed."""


class NoTarget(ExportError):
    """The kernel's NVMe target is not loaded."""


class NoConfigfs(ExportError):
    """The file system by which the kernel's target is configured is not mounted."""


class NotRoot(ExportError):
    """Only root may."""


class UnknownExport(ExportError):
    """There is no export of that name, or it has no such part."""


class AddressInUse(ExportError):
    """Something else listens at the address."""


class AddressUnusable(ExportError):
    """Not an address of this node, or not with that transport."""


class ExportedElsewhere(ExportError):
    """The device, or the name, is in use by another export."""


class DeviceHeld(ExportError):
    """The device is mounted, swap, or part of another volume."""


class NoAuthentication(ExportError):
    """This kernel cannot check keys."""


class ExportFailed(ExportError):
    """The kernel refused something."""


class RestoreIncomplete(ExportError):
    """Some of the exports are not in effect."""
