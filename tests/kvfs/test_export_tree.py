from __future__ import annotations

import errno
import tempfile
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfs.errors import ConfigError, UnknownExport
from kvfs.export.configfs import read_tree
from kvfs.export.model import (
    Export,
    Exports,
    HostKeys,
    Namespace,
    Parts,
    Port,
    check_nqn,
    new_namespace,
    parse_port,
    with_parts,
    without,
    without_parts,
)
from kvfs.export.testing import FakeTarget
from kvfs.export.tree import Facts, HostNode, Tree, difference, target
from tests.dhchap import secret
from tests.kvfs.exporting import COLD, GPU1, GPU2, HOT
from tests.kvfs.target_conformance import ADDRESS, answers

ADDRESSES = ("127.0.0.1", "192.0.2.1", "2001:db8::1")

# ── any exports to any others ────────────────────────────────────────────────────────────────────────────────

ports = st.builds(Port, st.sampled_from(["tcp", "rdma"]), st.sampled_from(ADDRESSES), st.just(4420))
hosts = st.lists(st.sampled_from([GPU1, GPU2]), unique=True).map(tuple)


@st.composite
def exports(draw: st.DrawFn, folder: Path) -> tuple[Exports, Facts]:
    """Any state of a node with two exports, and its facts."""
    found = {}
    for at, nqn in enumerate((HOT, COLD)):
        numbers = draw(st.lists(st.integers(1, 3), unique=True, max_size=3))
        if numbers:
            anyone = draw(st.booleans())
            found[nqn] = Export(
                nqn,
                f"serial{at}",
                {
                    number: Namespace(folder / f"{at}-{number}", UUID(int=number), UUID(int=9))
                    for number in numbers
                },
                tuple(draw(st.lists(ports, unique=True, min_size=1, max_size=3))),
                () if anyone else draw(hosts),
                anyone,
            )
    keys = draw(st.dictionaries(st.sampled_from([GPU1, GPU2]), st.sampled_from([secret(1), secret(2)])))
    buffered = frozenset(draw(st.sets(st.sampled_from([folder / "0-1", folder / "1-2"]))))
    both = draw(st.booleans())
    return Exports(found), Facts(
        buffered, {host: HostNode(key, key if both else None) for host, key in keys.items()}
    )


@settings(max_examples=30)
@given(st.data())
def test_every_step_from_any_exports_to_any_others_is_one_that_the_kernel_accepts(
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory(prefix="kvfs-export-") as name:
        folder = Path(name)
        for at in (0, 1):
            for number in (1, 2, 3):
                (folder / f"{at}-{number}").write_bytes(b"0" * 4096)
        fake = FakeTarget(folder / "nvmet", ADDRESSES)
        empty = read_tree(fake)
        before = Exports()
        for _ in range(3):
            after, facts = data.draw(exports(folder))
            seen = read_tree(fake)
            wanted = target(seen, before, after, {HOT, COLD}, facts)
            for step in difference(seen, wanted):
                fake.do(step)
            assert read_tree(fake) == wanted
            assert not difference(wanted, target(wanted, after, after, {HOT, COLD}, facts)), "it is stable"
            for step in difference(wanted, seen, cut_connections=False):  # and back, as after a failure
                fake.do(step)
            assert read_tree(fake) == seen
            for step in difference(seen, wanted):
                fake.do(step)
            before = after
        last = read_tree(fake)
        for step in difference(last, target(last, before, Exports(), {HOT, COLD}, Facts())):
            fake.do(step)
        assert read_tree(fake) == empty


def test_the_fake_refuses_what_the_kernel_does(tmp_path: Path) -> None:
    """Each answer is the kernel's: tests/lab asks it."""
    (tmp_path / "device").write_bytes(bytes(4096))
    fake = FakeTarget(tmp_path / "nvmet", (ADDRESS,))
    endings = Counter(answer.rpartition(": ")[2] for answer in answers(fake, tmp_path / "device"))
    assert {name: count for name, count in endings.items() if name in errno.errorcode.values()} == {
        "EACCES": 1,
        "EADDRINUSE": 2,
        "EADDRNOTAVAIL": 2,
        "EBUSY": 5,
        "EEXIST": 2,
        "EINVAL": 18,
        "ENOENT": 4,
        "ENOTEMPTY": 3,
        "EPERM": 1,
    }
    assert read_tree(fake) == Tree()


def test_a_subsystem_is_whole_and_guarded_before_a_port_offers_it() -> None:
    one = Export(
        HOT, "s", {1: new_namespace(HOT, Path("/dev/x"), None)}, (parse_port("tcp:192.0.2.1"),), (GPU1,)
    )
    facts = Facts((), {GPU1: HostNode(secret(1))})
    steps = difference(Tree(), target(Tree(), Exports(), Exports({HOT: one}), {HOT}, facts))
    at = {step.path: number for number, step in enumerate(steps)}
    offered = at[f"ports/1/subsystems/{HOT}"]
    assert offered == len(steps) - 1
    assert at[f"hosts/{GPU1}/dhchap_key"] < at[f"subsystems/{HOT}/allowed_hosts/{GPU1}"]
    assert secret(1) not in repr(steps)
    assert secret(1) not in repr(target(Tree(), Exports(), Exports({HOT: one}), {HOT}, facts))


# ── exports and their parts ──────────────────────────────────────────────────────────────────────────────────


def test_ports_are_read_in_every_form() -> None:
    assert parse_port("tcp:192.0.2.1") == Port("tcp", "192.0.2.1", 4420)
    assert parse_port("rdma:192.0.2.1:4421") == Port("rdma", "192.0.2.1", 4421)
    assert parse_port("tcp:[2001:0db8::0001]:5000") == Port("tcp", "2001:db8::1", 5000)
    assert parse_port("tcp:[fe80::1%eth0]").address == "fe80::1%eth0"
    for text in ("tcp:192.0.2.1", "rdma:[2001:db8::1]:4421"):
        assert parse_port(str(parse_port(text))) == parse_port(text)
    for wrong in (
        "tcp",
        "tcp:",
        "tcp:192.0.2.1:0",
        "tcp:192.0.2.1:65536",
        "tcp:2001:db8::1",
        "fc:1.2.3.4",
        "tcp:a",
    ):
        with pytest.raises(ConfigError):
            parse_port(wrong)


def test_names_are_those_that_nvme_has() -> None:
    for right in (
        HOT,
        "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        "nqn.2026-01.a",
    ):
        assert check_nqn(right) == right
    for wrong in (
        "",
        "hot",
        "nqn.2026-01.a:b/c",
        "nqn.2026-01.a:b c",
        "nqn.2026-01.a:",
        f"nqn.2026-01.a:{'x' * 223}",
        "nqn.2014-08.org.nvmexpress.discovery",
    ):
        with pytest.raises(ConfigError):
            check_nqn(wrong)


def test_keys_go_with_the_last_export_that_names_their_host() -> None:
    keys = HostKeys(Path("/k"))
    parts = Parts([new_namespace(HOT, Path("/d"), None)], [parse_port("tcp:192.0.2.1")], [GPU1], keys=keys)
    both = with_parts(with_parts(Exports(), HOT, parts), COLD, parts)
    assert both.keys == {GPU1: keys}
    assert without(both, HOT).keys == {GPU1: keys}
    assert without_parts(without(both, HOT), COLD, Parts(hosts=[GPU1])).keys == {}
    with pytest.raises(UnknownExport):
        without(both, "nqn.2026-01.a")


def test_identities_follow_from_names_and_never_change() -> None:
    one = new_namespace(HOT, Path("/dev/disk/by-id/nvme-a"), "eui.1")
    assert str(one.uuid) == "60c81286-cd71-5fbb-b1a6-d489d045abc3"
    assert str(one.nguid) == "3e85c8bc-92b5-52f8-8c80-0c0bb1a7c051"
    assert (
        with_parts(Exports(), HOT, Parts([one], [parse_port("tcp:192.0.2.1")])).exports[HOT].serial
        == "73e30196d4ddcfd2"
    )
