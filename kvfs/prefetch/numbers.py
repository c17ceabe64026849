"""Small numbers for keys of 64 bits, in 16 bytes a key. Pure.

A dictionary of integers takes 130. This is linear hashing (Litwin 1980): with each key that is added one bucket is split, so there is
no moment at which all of them move. Keys are hashes, so their low bits say where they are.
"""

from __future__ import annotations

from array import array


class Numbers:
    """Numbers from 1 on, the lowest that were given back first to be used again. 0 is nobody's.

    :ivar keys: of each number; 0 where nobody has it, which is a key, too
    """

    def __init__(self) -> None:
        self.keys = array("Q", [0])
        self._buckets = array("I", [0])
        """The first number of each."""
        self._after = array("I", [0])
        """The next number in the same bucket."""
        self._half = 1
        """The largest power of two of which there are that many buckets."""
        self._vacant = array("I")

    def __len__(self) -> int:
        return len(self.keys) - 1 - len(self._vacant)

    def find(self, key: int) -> int:
        """The number of a key; 0 if it has none."""
        number = self._buckets[self._bucket(key)]
        while number and self.keys[number] != key:
            number = self._after[number]
        return number

    def add(self, key: int) -> int:
        """A number for a key that has none. It is the next one that was never used, or one that was given back."""
        if self._vacant:
            number = self._vacant.pop()
            self.keys[number] = key
        else:
            number = len(self.keys)
            self.keys.append(key)
            self._after.append(0)
        if len(self) > len(self._buckets):
            self._split()
        self._put(number)
        return number

    def drop(self, number: int) -> None:
        """Give a number back."""
        bucket = self._bucket(self.keys[number])
        at = self._buckets[bucket]
        if at == number:
            self._buckets[bucket] = self._after[number]
        else:
            while self._after[at] != number:
                at = self._after[at]
            self._after[at] = self._after[number]
        self.keys[number] = 0
        self._vacant.append(number)

    def _bucket(self, key: int) -> int:
        bucket = key & (2 * self._half - 1)
        return bucket if bucket < len(self._buckets) else bucket & (self._half - 1)

    def _put(self, number: int) -> None:
        bucket = self._bucket(self.keys[number])
        self._after[number] = self._buckets[bucket]
        self._buckets[bucket] = number

    def _split(self) -> None:
        """One more bucket, with what belongs there of the one that had it until now."""
        bucket = len(self._buckets)
        if bucket == 2 * self._half:
            self._half = bucket
        split = bucket - self._half
        self._buckets.append(0)
        number, self._buckets[split] = self._buckets[split], 0
        while number:
            after = self._after[number]
            self._put(number)
            number = after
