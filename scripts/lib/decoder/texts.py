"""Four long texts of different kinds, made of what every Python ships."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from importlib import import_module
from pydoc_data.topics import topics
from types import ModuleType

SOURCES = ("textwrap", "shlex", "heapq", "bisect", "fnmatch", "sched", "queue", "csv", "configparser")
DOCUMENTED = (
    "argparse",
    "asyncio",
    "calendar",
    "collections",
    "concurrent.futures",
    "configparser",
    "contextlib",
    "csv",
    "datetime",
    "decimal",
    "difflib",
    "doctest",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "inspect",
    "ipaddress",
    "itertools",
    "json",
    "locale",
    "logging",
    "optparse",
    "pickle",
    "queue",
    "random",
    "re",
    "sched",
    "selectors",
    "shelve",
    "shutil",
    "socket",
    "statistics",
    "string",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "typing",
    "unittest",
    "uuid",
    "zipfile",
)
TOPICS = (
    "typesseq",
    "formatstrings",
    "specialnames",
    "exceptions",
    "import",
    "class",
    "numbers",
    "string-methods",
)
LINES = 80
"""That the agent reads at once."""
LONG = 1000
"""Characters of a document."""
THOUGHTS = (
    "Let me see how {0} is used before I change it.",
    "{0} seems to be where the problem is. I will read it again.",
    "That is not what I expected of {0}; the caller must rely on the old order.",
    "Next I look at {0}, then I run the tests.",
)


def code() -> str:
    """Modules of the standard library, one after the other."""
    return "\n".join(f"# {name}.py\n{_source(_module(name))}" for name in SOURCES)


def reference() -> str:
    """The language reference."""
    return "\n\n".join(topics[name] for name in TOPICS)


def documents() -> str:
    """Documents on many things: what modules, classes and functions say of themselves at some length."""
    titles = {
        text: title
        for name in DOCUMENTED
        for title, what in _described(name, _module(name))
        if len(text := inspect.getdoc(what) or "") >= LONG
    }
    documents = sorted(f"{title}\n\n{text}" for text, title in titles.items())
    random.Random(7).shuffle(documents)
    return "\n\n".join(f"Document {number}: {text}" for number, text in enumerate(documents, 1))


def agent() -> str:
    """An agent at work: it thinks, looks for something, and reads the lines around it, sometimes again."""
    rng = random.Random(11)
    steps: list[str] = ["You are a coding agent. Solve the task with shell commands, one in each step."]
    lines = {name: _source(_module(name)).splitlines() for name in SOURCES}
    while sum(map(len, steps)) < 60_000:
        name = rng.choice(SOURCES)
        places = [number for number, line in enumerate(lines[name]) if line.lstrip().startswith("def ")]
        place = rng.choice(places)
        function = lines[name][place].split("def ")[1].split("(")[0]
        found = [f"{n + 1}:{line}" for n, line in enumerate(lines[name]) if function in line][:6]
        steps.append(
            f"THOUGHT: {rng.choice(THOUGHTS).format(function)}\n$ grep -n {function} {name}.py\n"
            + "\n".join(found)
        )
        shown = "\n".join(lines[name][place : place + LINES])
        steps.append(f"$ sed -n {place + 1},{place + LINES}p {name}.py\n{shown}\n[exit status 0]")
    return "\n\n".join(steps)


TEXTS = {"code": code, "reference": reference, "documents": documents, "agent": agent}


def _module(name: str) -> ModuleType:
    return import_module(name)


def _source(module: ModuleType) -> str:
    return inspect.getsource(module)


def _described(name: str, module: ModuleType) -> Iterator[tuple[str, object]]:
    yield name, module
    for item in getattr(module, "__all__", ()):
        if callable(what := getattr(module, item)):
            yield f"{name}.{item}", what
