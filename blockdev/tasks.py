"""Concurrency without surprises: errors leave as themselves, not in groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

T = TypeVar("T")


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int) -> None:
    """Run `work` for every item, `at_once` at a time; the first error stops the others and is raised.

    Items are taken from the iterable as they are worked on.
    """
    rest = iter(items)

    async def worker() -> None:
        for item in rest:
            await work(item)

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(at_once):
                nursery.start_soon(worker)
    except BaseExceptionGroup as group:
        raise _first(group) from None


@asynccontextmanager
async def background() -> AsyncIterator[trio.Nursery]:
    """A nursery for tasks that run beside the block and are cancelled at its end.

    If the block or one task raises, that is raised, as it is; if several do, the first.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one to raise: what ends the program, else the first error, else the cancellation."""
    return min(_leaves(group), key=_rank)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _rank(error: BaseException) -> int:
    if isinstance(error, trio.Cancelled):
        return 2
    return 1 if isinstance(error, Exception) else 0
