"""Targets and namespaces as people write them."""

from __future__ import annotations

import re
from pathlib import PurePath
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockdev.nvme import (
    Credentials,
    DataPath,
    NamespaceName,
    Portal,
    Target,
    Transport,
    parse_namespace,
    parse_target,
)
from blockdev.nvme.names import parse_portals, read_key_path

NQN = "nqn.2014-08.org.example:kv"
NAME = UUID("6f4e0c1a-7a1b-4f3c-9a55-0d2f3b1c8e77")


def test_a_target_by_one_address() -> None:
    target = parse_target(f"nvme+tcp://192.0.2.1/{NQN}")
    assert target == Target(NQN, (Portal(Transport.TCP, "192.0.2.1", "4420"),))
    assert str(target) == f"nvme+tcp://192.0.2.1/{NQN}"


def test_several_addresses_are_several_ways() -> None:
    text = f"nvme+rdma://192.0.2.1,[2001:db8::1]:4421/{NQN}"
    target = parse_target(text)
    assert [str(portal) for portal in target.portals] == ["rdma://192.0.2.1", "rdma://[2001:db8::1]:4421"]
    assert str(target) == text


def test_a_namespace_by_number_or_uuid() -> None:
    assert parse_namespace(f"nvme+loop:///{NQN}/3").namespace == 3
    for text in (str(NAME), str(NAME).upper(), NAME.hex, f"uuid.{NAME}"):
        assert parse_namespace(f"nvme+tcp://storage-1/{NQN}/{text}").namespace == NAME


def test_what_lets_us_in_is_named_by_its_file() -> None:
    text = (
        f"nvme+tcp://192.0.2.1/{NQN}/1?host-key=/etc/kvfs/host.key&controller-key=/etc/kvfs/its.key&tls=yes"
    )
    name = parse_namespace(text)
    assert name.target.credentials == Credentials(
        PurePath("/etc/kvfs/host.key"), PurePath("/etc/kvfs/its.key"), tls=True
    )
    assert str(name) == text


def test_who_moves_the_bytes_is_not_part_of_the_name() -> None:
    text = f"nvme+rdma://192.0.2.1/{NQN}/1?path=rdma"
    name = parse_namespace(text)
    assert (name.data_path, str(name)) == (DataPath.RDMA, text)
    assert name == parse_namespace(f"nvme+rdma://192.0.2.1/{NQN}/1")
    assert str(parse_namespace(f"nvme+rdma://192.0.2.1/{NQN}/1?path=auto")) == text.partition("?")[0]


@pytest.mark.parametrize(
    "text, message",
    [
        (
            f"nvme+tcp://192.0.2.1/{NQN}/1?path=rdma",
            "'path' can only be rdma where the transport is, not over tcp",
        ),
        (
            f"nvme+rdma://192.0.2.1/{NQN}/1?path=fast",
            "'fast' is not a path for data: use one of auto, rdma, kernel",
        ),
    ],
)
def test_paths_that_are_not_there(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_namespace(text)


@pytest.mark.parametrize(
    "text, message",
    [
        (f"nvme+rdma://a/{NQN}?path=rdma", "is a target, and 'path' says how a namespace is used"),
        (f"nvme+fc://192.0.2.1/{NQN}", "'fc' is not a transport: use one of tcp, rdma, loop"),
        (f"nvme+tcp:///{NQN}", "an address is missing"),
        (f"nvme+tcp://a:0/{NQN}", "'a:0' is not an address"),
        (f"nvme+tcp://a:70000/{NQN}", "'a:70000' is not an address"),
        (f"nvme+tcp://a,a:4420/{NQN}", "tcp://a is given twice"),
        (f"nvme+loop://192.0.2.1/{NQN}", "loop has no address"),
        ("nvme+tcp://a/iqn.1993:x", "'iqn.1993:x' is not an NQN"),
        ("nvme+tcp://a", "is not a target, such as"),
        (f"nvme+tcp://a/{NQN}/1", "names a namespace, and a target is wanted"),
        (f"nvme+tcp://a/{NQN}?key=x", "'key' is not known"),
        (f"nvme+tcp://a/{NQN}?host-key=DHHC-1:00:abc:", "a secret may not stand here"),
        (f"nvme+tcp://a/{NQN}?host-key=key", "'key' is not an absolute path"),
    ],
)
def test_refused_targets(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_target(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("text, message", [("0", "is not a namespace"), ("x", "is not a namespace")])
def test_refused_namespaces(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_namespace(f"nvme+tcp://a/{NQN}/{text}")
    with pytest.raises(ValueError, match="lacks the namespace"):
        parse_namespace(f"nvme+tcp://a/{NQN}")


def test_where_to_ask() -> None:
    assert parse_portals("nvme+tcp://a:1,b") == (
        Portal(Transport.TCP, "a", "1"),
        Portal(Transport.TCP, "b", "4420"),
    )
    assert parse_portals("nvme+loop://") == (Portal(Transport.LOOP, "", ""),)
    with pytest.raises(ValueError, match="is not where a target may be"):
        parse_portals(f"nvme+tcp://a/{NQN}")


def test_a_secret_is_no_path() -> None:
    with pytest.raises(ValueError, match="a secret may not stand here"):
        read_key_path("NVMeTLSkey-1:01:abc:")


_hosts = st.sampled_from(["192.0.2.1", "storage-1.example", "2001:db8::1", "fe80::1%eth0"])
_portals = st.builds(
    lambda host, port: Portal(Transport.TCP, host, str(port)),
    _hosts,
    st.integers(min_value=1, max_value=65535),
)


@given(
    st.lists(_portals, min_size=1, max_size=3, unique=True),
    st.text(
        st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="/"), min_size=1, max_size=40
    ),
    st.one_of(st.integers(min_value=1, max_value=0xFFFFFFFE), st.uuids()),
    st.booleans(),
)
def test_what_is_written_is_read_back(
    portals: list[Portal], rest: str, namespace: int | UUID, tls: bool
) -> None:
    name = NamespaceName(Target(f"nqn.{rest}", tuple(portals), Credentials(tls=tls)), namespace)
    assert parse_namespace(str(name)) == name
