"""A mount of a pool whose device is far away: until standard input ends; then the mount's statistics are printed.

    python distant_mount.py '{"device": PATH, "state": PATH, "path": PATH, "memory": BYTES, "prefetch": "on", "new": false,
                              "latency": SECONDS, "rate": BYTES A SECOND}'

Prints a line when it answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from blockdev.creating import CreateOptions, create_pool
from blockdev.file_device import open_file_device
from blockdev.opening import OpenOptions, open_pool
from blockdev.testing import DistantDevice
from kvfs.frames import Arena, open_frames
from kvfs.fuse.mount import Mount, MountOptions, serve
from kvfs.names import is_temporary
from kvfs.prefetcher import Mode
from kvfs.report import plain

DOMAIN = "local:bench"


async def main(told: dict[str, Any]) -> None:
    """Mount, and end with standard input."""
    behind = await open_file_device(Path(told["device"]), writable=True)
    device = DistantDevice(behind, latency=told["latency"], rate=told["rate"])
    if told["new"]:
        await create_pool([behind], CreateOptions("distant", DOMAIN))
    options = OpenOptions(DOMAIN, is_temporary=is_temporary)
    async with open_pool([device], Path(told["state"]), options) as opened:
        arena = Arena(told["memory"], opened.pool.extent_size)
        async with open_frames(arena, opened.pool) as frames, trio.open_nursery() as nursery:
            mounted: list[Mount] = []

            async def end_with_input(mount: Mount) -> None:
                mounted.append(mount)
                print("ready", flush=True)
                await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()

            mode = MountOptions(prefetch=Mode(told["prefetch"]))
            await serve(
                opened.pool,
                frames,
                Path(told["path"]),
                mode,
                ready=lambda mount: nursery.start_soon(end_with_input, mount),
            )
        shown = {
            "frames": plain(frames.statistics()),
            "mount": plain(mounted[0].statistics()),
            "prefetch": plain(mounted[0].prefetcher.statistics()),
        }
    await behind.aclose()
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
