"""The Cache API: objects into callers' memory and out of it, without files."""

from kvfs.cache.api import Cache
from kvfs.cache.figures import CacheStatistics
from kvfs.cache.keys import Block, Key, Namespace
from kvfs.cache.pin import Pin
from kvfs.cache.reading import Arrivals, Got, Pair

__all__ = ["Arrivals", "Block", "Cache", "CacheStatistics", "Got", "Key", "Namespace", "Pair", "Pin"]
