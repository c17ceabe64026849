"""Text to tokens: byte-level byte-pair encoding, as GPT-2 has it, with digits apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise

DIGITS = re.compile(r"(\d)")
WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+")


def _alphabet() -> Mapping[int, str]:
    """A printable character for each byte: itself where it is one, and one beyond Latin-1 where it is not."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


ALPHABET = _alphabet()


class Tokenizer:
    """Encodes text.

    :param tokens: the vocabulary, in the order of the numbers
    :param merges: pairs that become one, separated by a space, the most eager first
    """

    def __init__(self, tokens: Iterable[str], merges: Iterable[str]) -> None:
        self._numbers = {token: number for number, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._word = lru_cache(maxsize=1 << 16)(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """The numbers of its tokens; what looks like a special token is text."""
        return [
            number for part in DIGITS.split(text) for word in WORDS.findall(part) or [part] if word
            for number in self._word(word)
        ]  # fmt: skip

    def _encode_word(self, word: str) -> tuple[int, ...]:
        parts = [ALPHABET[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            pair = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if pair not in self._ranks:
                break
            at = pairs.index(pair)
            parts[at : at + 2] = ["".join(pair)]
        return tuple(self._numbers[part] for part in parts)
