"""Pages and slots: leased together, given back once, always adding up."""

from __future__ import annotations

import pytest

from foveate.sched.blocks import Pool


def test_a_lease_grows_by_pages_and_gives_all_back_once() -> None:
    pool = Pool(pages=5, slots=2, page_len=4)
    lease = pool.lease()
    assert (pool.free_pages, pool.free_slots) == (5, 1)
    lease.grow(1)
    assert len(lease.pages) == 1
    lease.grow(4)
    assert len(lease.pages) == 1
    assert lease.missing(9) == 2
    lease.grow(9)
    assert len(set(lease.pages)) == 3 and pool.leased_pages == 3 and pool.free_pages == 2
    lease.release()
    lease.release()
    assert (pool.free_pages, pool.free_slots, pool.leased_pages, pool.leased_slots) == (5, 2, 0, 0)
    pool.assert_sound()


def test_a_released_lease_does_not_touch_its_successor() -> None:
    pool = Pool(pages=2, slots=1, page_len=4)
    first = pool.lease()
    first.grow(8)
    first.release()
    second = pool.lease()
    second.grow(8)
    first.release()
    assert pool.free_pages == 0 and pool.free_slots == 0
    pool.assert_sound()


def test_most_len_counts_pages_to_come() -> None:
    lease = Pool(pages=5, slots=2, page_len=4).lease()
    lease.grow(5)
    assert (lease.most_len(0), lease.most_len(3)) == (8, 20)


def test_leasing_beyond_what_is_free_is_a_bug() -> None:
    pool = Pool(pages=1, slots=1, page_len=4)
    lease = pool.lease()
    with pytest.raises(AssertionError, match="no free state slot"):
        pool.lease()
    with pytest.raises(AssertionError, match="beyond the free pages"):
        lease.grow(5)
    assert lease.pages == []


def test_a_lost_or_doubled_page_is_found() -> None:
    pool = Pool(pages=4, slots=1, page_len=4)
    lease = pool.lease()
    lease.grow(8)
    lost = lease.pages.pop()
    with pytest.raises(AssertionError, match="pages do not add up"):
        pool.assert_sound()
    lease.pages += [lost, lost]
    with pytest.raises(AssertionError, match="pages do not add up"):
        pool.assert_sound()
