"""A mount whose pool lets go what is worth its room least."""

from __future__ import annotations

import pytest

from tests.e2e.mounts import MakeMount

pytestmark = pytest.mark.fuse
SIZE = 4 << 20


def test_a_mount_evicts_by_value_and_says_so(make_mount: MakeMount) -> None:
    mount = make_mount(device_size="64MiB")
    config = mount.folder / "pool.yaml"
    mount.stop()
    config.write_text(f"{config.read_text()}eviction: value\n")
    mount.start()
    for number in range(60):
        path = mount.path / f"{number:064x}.bin"
        path.write_bytes(number.to_bytes(4, "big") * (SIZE // 4))
        assert path.read_bytes()[:4] == number.to_bytes(4, "big")
    figures = mount.statistics()
    assert figures["eviction.policy"] == "value"
    evicted = sum(int(figures[f"eviction.evicted_by_policy.{policy}"]) for policy in ("value", "lru"))
    assert evicted == int(figures["pool.evicted"]) > 20
