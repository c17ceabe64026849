"""Shared by all tests: options, hypothesis profiles, what needs which capability, and that logs stay quiet."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.capabilities import CAPABILITIES

REQUIRED = frozenset(filter(None, re.split(r"[,\s]+", os.environ.get("KVFS_REQUIRE", ""))))
"""Capabilities whose absence is a failure: skipped tests prove nothing about the change they ran for."""

# No deadlines: the machine's load is not the code's fault, and `timeout` bounds every test anyway.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=1000, stateful_step_count=100)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also slow tests, and more hypothesis examples")
    parser.addoption("--no-lab", action="store_true", help="leave out what boots emulated machines")


def pytest_configure(config: pytest.Config) -> None:
    unknown = REQUIRED - CAPABILITIES.keys()
    if unknown:
        raise pytest.UsageError(f"KVFS_REQUIRE names unknown capabilities: {', '.join(sorted(unknown))}")
    if not config.getoption("--hypothesis-profile"):
        quick = "ci" if os.environ.get("CI") else "default"
        settings.load_profile("long" if config.getoption("--long") else quick)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {} if config.getoption("--long") else {"slow": "slow: run with --long"}
    if config.getoption("--no-lab"):
        left_out["lab"] = "left out by --no-lab"
    for item in items:
        for marker, reason in left_out.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, lacking in CAPABILITIES.items():
        if item.get_closest_marker(name) and (reason := lacking()):
            if name in REQUIRED:
                pytest.fail(f"KVFS_REQUIRE={name}, but {reason}", pytrace=False)
            pytest.skip(reason)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


ExpectLog = Callable[..., None]
"""expect_log(pattern, *, count=None): see the fixture."""


@pytest.fixture
def _expected_logs() -> list[tuple[re.Pattern[str], int | None]]:
    return []


@pytest.fixture
def expect_log(_expected_logs: list[tuple[re.Pattern[str], int | None]]) -> ExpectLog:
    """Declare a warning or error that the test provokes.

    `expect_log(pattern)` wants at least one record whose message matches the regular expression, `count=N`
    exactly N, `count=0` none. What is not declared fails the test, and so does a declared record that does not come.
    """

    def declare(pattern: str, *, count: int | None = None) -> None:
        _expected_logs.append((re.compile(pattern), count))

    return declare


@pytest.fixture(autouse=True)
def _quiet_log(_expected_logs: list[tuple[re.Pattern[str], int | None]]) -> Iterator[None]:
    collector = _Collector()
    root = logging.getLogger()
    root.addHandler(collector)
    yield
    root.removeHandler(collector)
    messages = [f"{r.levelname} {r.name}: {r.getMessage()}" for r in collector.records]
    problems = []
    for pattern, count in _expected_logs:
        seen = sum(1 for message in messages if pattern.search(message))
        if seen == 0 if count is None else seen != count:
            wanted = "at least once" if count is None else f"{count} times"
            problems.append(f"expected {wanted}, logged {seen} times: {pattern.pattern}")
    problems += [m for m in messages if not any(pattern.search(m) for pattern, _ in _expected_logs)]
    if problems:
        pytest.fail("unexpected logs:\n  " + "\n  ".join(problems), pytrace=False)
