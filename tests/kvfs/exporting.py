"""What the tests of exports share: names, keys, and `kvfs export` with a target that is not the kernel's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvfs.export.testing import FakeTarget
from tests.kvfs.conftest import Kvfs, Result

HOT = "nqn.2026-01.org.example:hot"
COLD = "nqn.2026-01.org.example:cold"
GPU1 = "nqn.2014-08.org.nvmexpress:uuid:gpu1"
GPU2 = "nqn.2014-08.org.nvmexpress:uuid:gpu2"
SIZE = 4 << 20


class Storage:
    """A storage node: the command, its target, its devices."""

    def __init__(self, kvfs: Kvfs) -> None:
        self.kvfs = kvfs
        self.target = FakeTarget(kvfs.folder / "nvmet", ("127.0.0.1", "192.0.2.1", "2001:db8::1"))
        self.file = kvfs.folder / "exports.yaml"

    def __call__(self, verb: str, *arguments: str | Path) -> Result:
        return self.kvfs("export", verb, *arguments, "--file", self.file)

    def ok(self, verb: str, *arguments: str | Path) -> Result:
        return self.kvfs.ok("export", verb, *arguments, "--file", self.file)

    def fails(self, code: int, pattern: str, verb: str, *arguments: str | Path) -> Result:
        """Run what must fail, and see that it has changed nothing, neither the target nor the file."""
        before = self.tree(), self.file.exists() and self.file.read_bytes()
        result = self.kvfs.fails(code, pattern, "export", verb, *arguments, "--file", self.file)
        assert before == (self.tree(), self.file.exists() and self.file.read_bytes())
        return result

    def add(self, *more: str | Path, nqn: str = HOT, host: str = GPU1) -> Result:
        """An export of one device at one port, and what else is said."""
        return self.ok("add", nqn, self.device("d1"), "--port", "tcp:127.0.0.1", "--host", host, *more)

    def device(self, name: str, content: bytes = b"") -> Path:
        """A file, made if it is not there."""
        path = self.kvfs.device(name)
        if not path.exists():
            path.write_bytes(content.ljust(SIZE, b"\0"))
        return path

    def key(self, name: str, text: str) -> Path:
        path = self.kvfs.device(name)
        path.touch(0o600)
        path.write_text(text + "\n")
        return path

    def tree(self) -> dict[str, str]:
        """Everything that the target has: the values of attributes, and where links lead."""
        found: dict[str, str] = {}
        for path in sorted(self.target.root.rglob("*")):
            name = path.relative_to(self.target.root).as_posix()
            if path.is_symlink():
                found[name] = "-> " + path.readlink().relative_to(self.target.root).as_posix()
            elif path.is_file():
                found[name] = path.read_text().strip()
            else:
                found[name + "/"] = ""
        return found

    def reboot(self) -> None:
        """The kernel forgets everything."""
        root = self.target.root.rename(
            self.kvfs.folder / f"forgotten-{len(list(self.kvfs.folder.iterdir()))}"
        )
        assert root.exists()
        FakeTarget(self.target.root)
        self.target.connections.clear()

    def state(self, nqn: str = HOT) -> str:
        rows = self.ok("list", "-H", "-o", "nqn,state").rows
        (found,) = (state for name, state in rows if name == nqn)
        return found

    def show(self, nqn: str = HOT) -> Any:
        return self.ok("show", nqn, "--json").json["export"]
