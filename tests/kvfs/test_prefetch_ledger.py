"""The ledger: every byte that was fetched is used, wasted, failed, or still open."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvfs.prefetch.ledger import Ledger, accuracy
from kvfs.prefetch.planner import Source

ENDS = {"used": lambda ledger, what: ledger.used(what, late=False), "late": lambda ledger, what: ledger.used(what, late=True),
        "wasted": lambda ledger, what: ledger.wasted(what), "failed": lambda ledger, what: ledger.failed(what)}  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["begun", *ENDS]), st.sampled_from(Source)), max_size=60
    )
)
def test_every_byte_is_accounted_for(steps: list[tuple[int, str, Source]]) -> None:
    ledger: Ledger[int] = Ledger()
    for now, (what, step, source) in enumerate(steps):
        if step == "begun":
            if what not in ledger:
                ledger.begun(what, source, what + 1, float(now))
        else:
            ENDS[step](ledger, what)
            assert what not in ledger
    accounts = ledger.snapshot().values()
    still_open = sum(what + 1 for what in range(10) if what in ledger)
    assert sum(a.fetched for a in accounts) == still_open + sum(
        a.used + a.wasted + a.failed for a in accounts
    )
    assert all(a.late <= a.used for a in accounts)


def test_what_it_says() -> None:
    ledger: Ledger[str] = Ledger()
    assert ledger.coverage is None
    assert accuracy(ledger.accounts[Source.CHAIN]) is None
    for what in "abc":
        ledger.begun(what, Source.CHAIN, 10, 1.0)
    ledger.missed += 30
    assert ledger.used("a", late=True) is Source.CHAIN
    assert ledger.used("z", late=False) is None
    assert ledger.wasted("b") is Source.CHAIN
    assert ledger.oldest() == ("c", 1.0)
    assert ledger.coverage == 0.25
    assert accuracy(ledger.accounts[Source.CHAIN]) == 0.5
