"""A target that demands TLS: with its key everything works as without, and without it nothing does."""

from __future__ import annotations

from scripts.lib.lab.guest import Guest
from tests.lab.pools import MOUNT, Nodes, host_nqn, kvfs, ok

NQN = "nqn.2026-11.org.example:tls"
OTHER = "nqn.2026-11.org.example:other"
KEYS = "/run/tls-keys"
_HANDSHAKES = """
modprobe -a tls nvme-tcp nvmet nvmet-tcp
sed -i 's/^#keyrings=.*/keyrings=.nvme/' /etc/tlshd.conf
setsid tlshd < /dev/null > /dev/null 2>&1 &
"""
_DEMAND = """
cd /sys/kernel/config/nvmet/ports/*/
for one in subsystems/*; do rm $one; done
echo tls1.3 > addr_tsas
ln -s ../../subsystems/nqn* subsystems/
"""


def new_key(guest: Guest, nqn: str, host: str) -> None:
    guest.run("nvme", "gen-tls-key", "-n", host, "-c", nqn, "--insert", "--identity=1")


def test_a_target_that_demands_tls(nodes: Nodes) -> None:
    storage, gpu = nodes
    host = host_nqn(gpu)
    for guest in nodes:
        guest.sh(_HANDSHAKES)
    where = f"--port tcp:{storage.address} --host {host}"
    ok(storage, f"export add {NQN} /dev/lab/d0 {where}", f"export add {OTHER} /dev/lab/d1 {where}")
    storage.sh(_DEMAND)
    first, second = (f"nvme+tcp://{storage.address}/{nqn}" for nqn in (NQN, OTHER))
    new_key(storage, NQN, host)
    gpu.write(KEYS, storage.sh(f"nvme tls-key --export --keyfile {KEYS}; cat {KEYS}").encode())
    for guest in nodes:
        new_key(guest, OTHER, host)
    refused = {
        f"target connect {first}": (104, "or it demands TLS: --tls"),
        f"target connect {first} --tls": (106, "no TLS key for"),
        f"target connect {second} --tls": (106, "no connection with TLS"),
    }
    for (code, says), answer in zip(refused.values(), kvfs(gpu, *refused), strict=True):
        assert answer["code"] == code, answer
        assert says in answer["err"], answer
    gpu.run("nvme", "tls-key", "--import", "--keyfile", KEYS)
    ok(gpu, f"pool create safe {first}/1?tls=yes", f"mount safe {MOUNT} --memory 64MiB")
    gpu.sh(f"head -c 3000000 /dev/urandom > {MOUNT}/block; sha256sum {MOUNT}/block > /tmp/sum")
    ok(gpu, f"umount {MOUNT}", f"target disconnect {NQN}", f"mount safe {MOUNT} --memory 64MiB")
    assert gpu.sh("sha256sum -c /tmp/sum").strip().endswith(": OK")
    ok(gpu, f"umount {MOUNT}", "pool destroy safe --yes", f"target disconnect {NQN}")
