"""Sequence memory as numbers: pages that grow with tokens and state slots of fixed size, leased together.

Owns which page and which slot belongs to whom. A `Lease` takes a slot when it is opened and pages as the sequence
grows, and gives all of it back in one `release()` that may be called any number of times: finish, abort, preemption
and error all end there. Promises that free and leased always add up to the whole, and that nothing is leased twice.
Refuses to know requests and tensors: what a page holds is the runner's business.
"""

from __future__ import annotations


class Pool:
    """All pages and state slots there are. Numbers are handed out from 0; the last one returned goes out first."""

    def __init__(self, pages: int, slots: int, page_len: int) -> None:
        self.pages, self.slots, self.page_len = pages, slots, page_len
        self._free_pages = list(range(pages - 1, -1, -1))
        self._free_slots = list(range(slots - 1, -1, -1))
        self._leases: set[Lease] = set()

    @property
    def free_pages(self) -> int:
        return len(self._free_pages)

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def leased_pages(self) -> int:
        return sum(len(lease.pages) for lease in self._leases)

    @property
    def leased_slots(self) -> int:
        return len(self._leases)

    def pages_for(self, token_len: int) -> int:
        """Pages that hold `token_len` tokens."""
        return -(-token_len // self.page_len)

    def lease(self) -> Lease:
        """Open a lease with a state slot and no page yet; the caller has seen that a slot is free."""
        assert self._free_slots, "no free state slot"
        lease = Lease(self, self._free_slots.pop())
        self._leases.add(lease)
        return lease

    def assert_sound(self) -> None:
        """Fail if anything is missing, or is both free and leased, or leased twice."""
        pages = self._free_pages + [page for lease in self._leases for page in lease.pages]
        slots = self._free_slots + [lease.slot for lease in self._leases]
        assert sorted(pages) == list(range(self.pages)), f"pages do not add up: {len(pages)} of {self.pages}"
        assert sorted(slots) == list(range(self.slots)), f"state slots do not add up: {len(slots)} of {self.slots}"

    def _take_page(self) -> int:
        return self._free_pages.pop()

    def _take_back(self, lease: Lease) -> None:
        if lease in self._leases:
            self._leases.remove(lease)
            self._free_pages.extend(reversed(lease.pages))
            self._free_slots.append(lease.slot)


class Lease:
    """The memory of one running sequence: its page table and its state slot."""

    def __init__(self, pool: Pool, slot: int) -> None:
        self.pages: list[int] = []
        self.slot = slot
        self._pool = pool

    def missing(self, token_len: int) -> int:
        """Pages it lacks to hold `token_len` tokens."""
        return max(0, self._pool.pages_for(token_len) - len(self.pages))

    def most_len(self, more_pages: int) -> int:
        """Tokens it could hold with so many pages more."""
        return (len(self.pages) + more_pages) * self._pool.page_len

    def grow(self, token_len: int) -> None:
        """Take the pages it lacks to hold `token_len` tokens; the caller has seen that they are free."""
        missing = self.missing(token_len)
        assert missing <= self._pool.free_pages, "grown beyond the free pages"
        self.pages.extend(self._pool._take_page() for _ in range(missing))

    def release(self) -> None:
        """Give back slot and pages; further calls do nothing."""
        self._pool._take_back(self)
