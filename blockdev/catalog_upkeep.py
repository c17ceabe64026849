"""Keeps catalogues on their disk while a pool is open, and leaves them so that the next opening believes them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import trio

from blockdev.catalog import Catalog, Trust
from blockdev.catalogs import Catalogs
from blockdev.errors import BlockError, DeviceError, Unavailable
from blockdev.media import Media
from blockdev.recovered import Contradiction
from blockdev.types import ObjectId

log = logging.getLogger(__name__)

_COMMIT_BUSY = 0.005
_COMMIT_IDLE = 0.05
"""Seconds between looks whether the catalogue has changes to commit."""
_CHECK_READERS = 10.0
"""Seconds."""


def begin_sessions(media: Media, catalogs: Iterable[Catalog], boot_id: str) -> None:
    """From here on these catalogues follow the devices that are there now. :raises OSError:"""
    present = {a.superblock.device: a.superblock.sequence for a in media.devices.values() if not a.lost}
    for catalog in catalogs:
        catalog.begin_session(boot_id, present)


def distrust_together(
    catalogs: Mapping[int, Catalog], trusts: dict[int, Trust], blank: Collection[int] = ()
) -> None:
    """See that of seats that are taken together all are read from media if one must be.

    Whoever held them may have ended while it made regions of one the other's, before it moved their records.

    :param catalogs: by seat
    :param trusts: changed
    :param blank: seats that never had anything
    """
    if any(trust is Trust.STALE for seat, trust in trusts.items() if seat not in blank):
        for seat, catalog in catalogs.items():
            catalog.clear()
            trusts[seat] = Trust.STALE


def give_up(catalogs: Iterable[Catalog], error: Contradiction | OSError, *, readonly: bool = False) -> None:
    """Empty catalogues of which one failed or contradicts the media, so that they are built again from them.

    :raises OSError: `error`, if no catalogue is what failed
    :raises BlockError: it cannot be, by who only reads
    """
    catalogs = list(catalogs)
    if isinstance(error, OSError) and not any(catalog.failed for catalog in catalogs):
        raise error
    what = "is damaged" if isinstance(error, OSError) else "contradicts the media"
    if readonly:
        raise BlockError(f"the catalogue {what}: {error}; mount the pool once") from error
    log.warning("the catalogue %s (%s): it is built again from the media", what, error)
    for catalog in catalogs:
        catalog.clear()  # and with it what it remembers as dirty, before `Slots` looks at that


async def keep_committing(catalogs: Catalogs) -> None:
    """A catalogue that cannot be written, on a disk that is full, ends nothing: what it has committed can still be
    read, what is stored meanwhile may be missing until the pool is opened again and the media are read.
    """
    checked = trio.current_time()
    failing = False
    while True:
        await trio.sleep(_COMMIT_BUSY if catalogs.has_changes else _COMMIT_IDLE)
        try:
            if catalogs.commit_due(trio.current_time()):
                failing = False
        except OSError as error:
            if not failing:
                log.error(
                    "the catalogue cannot be written (%s): free space there, then mount the pool again", error
                )
            failing = True
        if trio.current_time() - checked > _CHECK_READERS:
            catalogs.reader_check()  # a reader that was killed would keep old pages from being reused
            checked = trio.current_time()


async def settle(media: Media, catalogs: Catalogs, order: Iterable[ObjectId], *, clean: bool) -> None:
    """Leave media and catalogues so that the next opening believes them.

    :param order: of eviction
    :param clean: the catalogues say all that the media say, as far as they were there
    :raises OSError:
    """
    for number in list(media.devices):
        if media.available(number):
            with suppress(
                DeviceError, Unavailable
            ):  # it is lost then, and the catalogue does not speak for it
                await media.flush([number])
    order = list(order)
    for catalog in catalogs.own.values():
        catalog.save_order(order)
    catalogs.close(clean=clean)
