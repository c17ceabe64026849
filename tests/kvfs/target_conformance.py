"""What every Target does: a script of steps, right and wrong ones, and how each of them ends.

The fake's answers are compared with the kernel's own in tests/lab; so what the fake lets pass, the kernel does, too.
`python -m tests.kvfs.target_conformance FILE` prints the kernel's as JSON. FILE is to be exported.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

from kvfs.export.configfs import Target, find_target
from kvfs.export.tree import Action, Step
from tests.dhchap import secret
from tests.kvfs.exporting import GPU1, HOT

ADDRESS = "127.0.0.1"
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
MAKE, REMOVE, WRITE, LINK, UNLINK = Action.MAKE, Action.REMOVE, Action.WRITE, Action.LINK, Action.UNLINK
SUBSYSTEM, HOST, PORT, OTHER_PORT = f"subsystems/{HOT}", f"hosts/{GPU1}", "ports/7", "ports/8"
NAMESPACE = f"{SUBSYSTEM}/namespaces/1"
ALLOWED, OFFERED = f"{SUBSYSTEM}/allowed_hosts/{GPU1}", f"subsystems/{HOT}"


def script(device: Path) -> list[Step]:
    """From an empty target to an empty target."""

    def port(folder: str) -> list[Step]:
        return [
            Step(MAKE, folder),
            Step(LINK, f"{folder}/{OFFERED}", SUBSYSTEM),  # without a transport
            Step(WRITE, f"{folder}/addr_trtype", "carrier-pigeon"),
            Step(WRITE, f"{folder}/addr_trtype", "tcp"),
            Step(WRITE, f"{folder}/addr_adrfam", "ipv4"),
            Step(WRITE, f"{folder}/addr_trsvcid", "4420"),
            Step(WRITE, f"{folder}/addr_traddr", "192.0.2.200"),
            Step(LINK, f"{folder}/{OFFERED}", SUBSYSTEM),  # not an address of this node
            Step(WRITE, f"{folder}/addr_traddr", ADDRESS),
            Step(LINK, f"{folder}/{OFFERED}", SUBSYSTEM),
            Step(WRITE, f"{folder}/addr_traddr", ADDRESS),
            Step(LINK, f"{folder}/{OFFERED}", SUBSYSTEM),  # again
        ]

    return [
        *(Step(MAKE, path) for path in ("nonsense", "ports/x", "ports/70000", f"subsystems/{DISCOVERY}")),
        *(Step(MAKE, path) for path in (SUBSYSTEM, SUBSYSTEM, f"{SUBSYSTEM}/namespaces/0", NAMESPACE)),
        *(Step(WRITE, f"{SUBSYSTEM}/attr_serial", text) for text in ("s" * 21, "serial")),
        *(Step(WRITE, f"{SUBSYSTEM}/attr_model", text) for text in ("m" * 41, "model")),
        Step(WRITE, f"{SUBSYSTEM}/attr_nonsense", "1"),
        *(Step(WRITE, f"{NAMESPACE}/{name}", "x") for name in ("device_uuid", "device_nguid", "enable")),
        Step(WRITE, f"{NAMESPACE}/device_path", f"{device}-that-is-not-there"),
        Step(WRITE, f"{NAMESPACE}/enable", "1"),
        Step(WRITE, f"{NAMESPACE}/device_path", str(device)),
        Step(WRITE, f"{NAMESPACE}/device_uuid", "7d5c1c1e-0b3a-5a55-8c51-1f0c9a000001"),
        Step(WRITE, f"{NAMESPACE}/device_nguid", "7d5c1c1e-0b3a-5a55-8c51-1f0c9a000002"),
        Step(WRITE, f"{NAMESPACE}/buffered_io", "1"),
        *(Step(WRITE, f"{NAMESPACE}/enable", "1") for _ in range(2)),
        Step(WRITE, f"{NAMESPACE}/device_path", str(device)),
        Step(WRITE, f"{NAMESPACE}/device_uuid", "7d5c1c1e-0b3a-5a55-8c51-1f0c9a000003"),
        Step(WRITE, f"{NAMESPACE}/device_nguid", "7d5c1c1e-0b3a-5a55-8c51-1f0c9a000004"),
        Step(WRITE, f"{NAMESPACE}/buffered_io", "0"),
        Step(LINK, ALLOWED, HOST),
        Step(MAKE, HOST),
        *(Step(WRITE, f"{HOST}/dhchap_key", text) for text in ("swordfish", secret(1))),
        Step(LINK, ALLOWED, SUBSYSTEM),
        Step(LINK, ALLOWED, HOST),
        Step(WRITE, f"{SUBSYSTEM}/attr_allow_any_host", "1"),
        Step(REMOVE, HOST),
        Step(UNLINK, ALLOWED),
        Step(WRITE, f"{SUBSYSTEM}/attr_allow_any_host", "1"),
        Step(LINK, ALLOWED, HOST),
        Step(WRITE, f"{SUBSYSTEM}/attr_allow_any_host", "0"),
        Step(LINK, ALLOWED, HOST),
        *port(PORT),
        Step(REMOVE, PORT),
        Step(REMOVE, SUBSYSTEM),
        *port(OTHER_PORT),  # at the same address
        Step(REMOVE, OTHER_PORT),
        Step(UNLINK, f"{PORT}/{OFFERED}"),
        Step(WRITE, f"{PORT}/addr_traddr", ADDRESS),
        *(Step(REMOVE, path) for path in (PORT, SUBSYSTEM)),
        Step(UNLINK, ALLOWED),
        *(Step(REMOVE, path) for path in (SUBSYSTEM, NAMESPACE, SUBSYSTEM, HOST, HOST)),
    ]


def answers(target: Target, device: Path) -> list[str]:
    """Each step with what comes of it: the name of an error, or what the attribute says afterwards."""
    return [
        f"{step.action.value} {step.path} {step.value}: {_answer(target, step)}" for step in script(device)
    ]


def _answer(target: Target, step: Step) -> str:
    try:
        target.do(step)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return target.read(step.path) if step.action is WRITE else "done"


if __name__ == "__main__":
    json.dump(answers(find_target(), Path(sys.argv[1])), sys.stdout)
