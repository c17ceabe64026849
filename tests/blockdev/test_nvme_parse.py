"""What the versions of nvme-cli print. The samples are cut down to what is read, and a little that is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from blockdev.nvme import parse
from blockdev.nvme.parse import Unreadable
from blockdev.nvme.records import (
    ControllerIdentity,
    DiscoveryEntry,
    NamespaceEntry,
    NamespaceIdentity,
    PathEntry,
    SmartLog,
    SubsystemEntry,
)

NQN = "nqn.2014-08.org.example:kv"
DISCOVERED = {
    "genctr": 6,
    "records": [
        {
            "trtype": "tcp",
            "subtype": "current discovery subsystem",
            "treq": "not specified, sq flow control disable supported",
            "portid": 1,
            "trsvcid": "4420",
            "subnqn": "nqn.2014-08.org.nvmexpress.discovery",
            "traddr": "192.0.2.1",
        },
        {
            "trtype": "rdma",
            "subtype": "nvme subsystem",
            "treq": "required",
            "portid": 2,
            "trsvcid": "4421",
            "subnqn": NQN,
            "traddr": "192.0.2.1",
            "rdma_qptype": "connected",
        },
    ],
}
ENTRY = NamespaceEntry("nvme1n1", 1, 134217728, 4096, "Linux", "5619167b5cfd", "6.1.0-57")
FLAT = {
    "Devices": [
        {
            "NameSpace": 1,
            "DevicePath": "/dev/nvme1n1",
            "Firmware": "6.1.0-57",
            "ModelNumber": "Linux",
            "SerialNumber": "5619167b5cfd",
            "UsedBytes": 134217728,
            "MaximumLBA": 32768,
            "PhysicalSize": 134217728,
            "SectorSize": 4096,
        }
    ]
}
NAMESPACE = {"NameSpace": "nvme1n1", "NSID": 1, "PhysicalSize": 134217728, "SectorSize": 4096}
DRIVE = {"SerialNumber": "5619167b5cfd", "ModelNumber": "Linux", "Firmware": "6.1.0-57"}
CONTROLLER = {"Controller": "nvme1", **DRIVE, "Transport": "tcp", "Address": "traddr=192.0.2.1,trsvcid=4420"}
MULTIPATH = {
    "Devices": [
        {
            "HostNQN": "nqn.host",
            "Subsystems": [
                {
                    "Subsystem": "nvme-subsys1",
                    "SubsystemNQN": NQN,
                    "Controllers": [
                        {
                            **CONTROLLER,
                            "Namespaces": [],
                            "Paths": [{"Path": "nvme1c1n1", "ANAState": "optimized"}],
                        }
                    ],
                    "Namespaces": [NAMESPACE],
                }
            ],
        }
    ]
}
SINGLE_PATH = {
    "Devices": [
        {
            "Subsystems": [
                {"Controllers": [{**CONTROLLER, "Namespaces": [NAMESPACE], "Paths": []}], "Namespaces": []}
            ]
        }
    ]
}
BY_NAMESPACE = {
    "Devices": [
        {
            "Subsystems": [
                {
                    "Subsystem": "nvme-subsys1",
                    "Namespaces": [{**NAMESPACE, "Paths": [{"Path": "nvme1c1n1", **CONTROLLER}]}],
                    "Controllers": [CONTROLLER],
                }
            ]
        }
    ]
}


def test_discovery() -> None:
    assert parse.parse_discovery(json.dumps(DISCOVERED)) == [
        DiscoveryEntry(
            "tcp",
            "192.0.2.1",
            "4420",
            "nqn.2014-08.org.nvmexpress.discovery",
            1,
            discovery=True,
            secure=False,
        ),
        DiscoveryEntry("rdma", "192.0.2.1", "4421", NQN, 2, discovery=False, secure=True),
    ]


@pytest.mark.parametrize("printed", [FLAT, MULTIPATH, SINGLE_PATH, BY_NAMESPACE])
def test_namespaces_in_every_layout(printed: Any) -> None:
    assert parse.parse_namespaces(json.dumps(printed)) == [ENTRY]


def test_nothing_is_printed_where_nothing_is() -> None:
    assert parse.parse_namespaces("") == []
    assert parse.parse_subsystems("\n") == []
    assert parse.parse_discovery("") == []
    assert parse.parse_connected("") is None


@pytest.mark.parametrize(
    "around", [lambda subsystems: [{"HostNQN": "x", "Subsystems": subsystems}], lambda s: s]
)
def test_subsystems(around: Any) -> None:
    path = {
        "Name": "nvme1",
        "Transport": "tcp",
        "Address": "traddr=192.0.2.1,trsvcid=4420,src_addr=192.0.2.9",
        "State": "connecting",
    }
    drive = {"Name": "nvme0", "Transport": "pcie", "Address": "0000:00:06.0", "State": "live"}
    printed = around(
        [
            {"Name": "nvme-subsys1", "NQN": NQN, "Paths": [path]},
            {"Name": "nvme-subsys0", "NQN": "nqn.drive", "Paths": [drive]},
        ]
    )
    assert parse.parse_subsystems(json.dumps(printed)) == [
        SubsystemEntry("nvme-subsys1", NQN, (PathEntry("nvme1", "tcp", "192.0.2.1", "4420", "connecting"),)),
        SubsystemEntry(
            "nvme-subsys0", "nqn.drive", (PathEntry("nvme0", "pcie", "0000:00:06.0", "", "live"),)
        ),
    ]


def test_who_is_connected() -> None:
    assert parse.parse_connected('{"device":"nvme1"}') == "nvme1"
    assert parse.parse_connected('{"device":"/dev/nvme1"}') == "nvme1"


def test_what_a_controller_offers() -> None:
    assert parse.parse_active('{"nsid_list":[{"nsid":1},{"nsid":7}]}') == [1, 7]
    assert parse.parse_active('{"nsid_list":[]}') == []


def test_a_controller() -> None:
    printed = {"mn": "Linux   ", "sn": "abc ", "fr": "6.1", "mdts": 8, "vwc": 7, "cmic": 11, "subnqn": NQN}
    assert parse.parse_controller(json.dumps(printed)) == ControllerIdentity(
        NQN, "Linux", "abc", "6.1", transfer_limit=1 << 20, volatile_cache=True, ana=True
    )
    assert parse.parse_controller(json.dumps({**printed, "mdts": 0})).transfer_limit is None


def test_a_namespace() -> None:
    formats = [{"ms": 0, "ds": 9, "rp": 0}, {"ms": 0, "ds": 12, "rp": 0}]
    printed = {"nsze": 32768, "flbas": 1, "nmic": 1, "nguid": "0" * 32, "lbafs": formats}
    assert parse.parse_namespace(json.dumps(printed)) == NamespaceIdentity(
        32768 << 12, 4096, shared=True, nguid=None
    )
    named = parse.parse_namespace(json.dumps({**printed, "nguid": "AB" * 16, "flbas": 0}))
    assert (named.nguid, named.block_size) == ("ab" * 16, 512)
    with pytest.raises(Unreadable, match="no block format"):
        parse.parse_namespace(json.dumps({**printed, "flbas": 5}))


@pytest.mark.parametrize("warning", [4, "4", {"value": 4, "available_spare": 0}])
def test_health_with_counters_as_numbers_or_strings(warning: Any) -> None:
    printed = {
        "critical_warning": warning,
        "temperature": 323,
        "avail_spare": 98,
        "percent_used": 3,
        "data_units_read": "12",
        "data_units_written": 7,
        "media_errors": "1",
    }
    assert parse.parse_smart(json.dumps(printed)) == SmartLog(4, 323, 98, 3, 6_144_000, 3_584_000, 1)


@pytest.mark.parametrize(
    "text, version",
    [
        ("nvme version 2.3 (git 2.3)\nlibnvme version 1.3 (git 1.3)\n", (2, 3)),
        ("nvme version 2.13 (git 2.13)", (2, 13)),
        ("nvme version 3.2 (git v3.2-14-gabc)", (3, 2)),
        ("nvme version 3.0-b.5", (3, 0)),
    ],
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert parse.parse_version(text) == version


@pytest.mark.parametrize(
    "read, text",
    [
        (parse.parse_namespaces, "Node  Generic"),
        (parse.parse_controller, "[]"),
        (parse.parse_controller, "{}"),
        (parse.parse_smart, '{"critical_warning": "high"}'),
        (parse.parse_smart, '{"critical_warning": 0, "temperature": true}'),
        (parse.parse_version, "nvme"),
        (parse.parse_subsystems, '[{"NQN": "x", "Paths": [1]}]'),
        (parse.parse_namespaces, '[{"PhysicalSize": 1, "SectorSize": 1}]'),
    ],
)
def test_what_is_not_understood_is_said(read: Any, text: str) -> None:
    with pytest.raises(Unreadable):
        read(text)
