# SPDX-License-Identifier: MIT
"""Who has which pages: integers only, no keys and values.

A page has owners, the sequences whose tables name it; without owners it is free. Only the last page
of a sequence is ever written to, and only by its one owner.
"""

import dataclasses

import numpy as np

from fastattn import _check_options as options


@dataclasses.dataclass
class Sequence:
    """A sequence: its length and its table of pages.

    Attributes
    ----------
    length : int
        Tokens, those that were evicted included.
    blocks : int
        Entries of `table` in use: enough for `length`.
    evicted : int
        How many of these, from the first on, have given their page back; they are 0.
    table : ndarray, int32
    """

    length: int = 0
    blocks: int = 0
    evicted: int = 0
    table: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(4, np.int32))

    def pages(self):
        """Pages that the sequence has."""
        return self.table[self.evicted : self.blocks]

    def last(self):
        """The page of the last token."""
        return int(self.table[self.blocks - 1])

    def add(self, page):
        """Take one page more; the table doubles when it is full."""
        if self.blocks == self.table.size:
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        self.table[self.blocks] = page
        self.blocks += 1

    def drop(self, begin, end):
        """Forget a range of entries; return the pages that they named."""
        pages = self.table[begin:end].copy()
        self.table[begin:end] = 0
        return pages


class PagePool:
    """Pages and the sequences that have them.

    Attributes
    ----------
    pages, page_size : int
    owners : ndarray, (pages,)
        How many sequences have each page.
    free : list of int
        Pages without owners, the next one last.
    sequences : dict of int to Sequence
    """

    def __init__(self, pages, page_size):
        self.pages, self.page_size = pages, page_size
        self.owners = np.zeros(pages, np.int64)
        self.free = list(range(pages))[::-1]
        self.sequences = {}
        self.next_id = 0

    def one(self, id):
        """Return the sequence of this name."""
        name = options.integer("id", id, 0)
        if name not in self.sequences:
            raise ValueError(f"id: expected a sequence of this cache, got {name}")
        return self.sequences[name]

    def several(self, ids, once=False):
        """Return the sequences of these names, of which none may come twice if `once`."""
        if isinstance(ids, int | np.integer):
            names = [options.integer("ids", ids, 0)]
        else:
            names = options.integers("ids", ids, "an integer or integers").reshape(-1).tolist()
        for name in names:
            if name not in self.sequences:
                raise ValueError(f"ids: expected sequences of this cache, got {name}")
        if once and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"ids: expected each sequence once, got {twice} again")
        return [self.sequences[name] for name in names]

    def add(self, sequence):
        """Give a sequence a name, which is returned, and make it an owner of its pages."""
        name = self.next_id
        self.next_id += 1
        self.sequences[name] = sequence
        self.owners[sequence.pages()] += 1
        return name

    def fork(self, id):
        """Return the name of a new sequence with the pages of this one."""
        original = self.one(id)
        return self.add(dataclasses.replace(original, table=original.table.copy()))

    def remove(self, id):
        """Forget a sequence."""
        self._release(self.one(id).pages())
        del self.sequences[int(id)]

    def truncate(self, id, length):
        """Forget all but the first tokens of a sequence."""
        sequence = self.one(id)
        least = sequence.evicted * self.page_size
        [length] = options.per_batch("length", length, (), least, sequence.length).tolist()
        blocks = -(-length // self.page_size)
        self._release(sequence.drop(blocks, sequence.blocks))
        sequence.blocks, sequence.length = blocks, length

    def evict(self, id, window):
        """Take whole pages that lie before a window from a sequence; return how many."""
        sequence = self.one(id)
        window = options.integer("window", window, 0)
        end = max(sequence.length - window, 0) // self.page_size
        if end <= sequence.evicted:
            return 0
        pages = sequence.drop(sequence.evicted, end)
        sequence.evicted = end
        self._release(pages)
        return pages.size

    def reserve(self, sequences, counts):
        """Give each sequence pages for so many more tokens: all of them or, ValueError, none.

        Returns
        -------
        list of (int, int)
            Pages to be copied, and where to: the last ones of sequences that shared them.
        """
        needed, sharing, owners = 0, [], {}
        for sequence, count in zip(sequences, counts, strict=True):
            if not count:
                continue
            needed += -(-(sequence.length + count) // self.page_size) - sequence.blocks
            if sequence.length % self.page_size:
                last = sequence.last()
                owners.setdefault(last, int(self.owners[last]))
                if owners[last] > 1:
                    owners[last] -= 1  # the last one that shares it needs no copy
                    sharing.append(sequence)
        needed += len(sharing)
        if needed > len(self.free):
            raise ValueError(
                f"k: expected tokens that fit into the free pages, {len(self.free)}, got tokens "
                f"that need {needed} (free or evict sequences)"
            )
        copies = []
        for sequence in sharing:
            copies.append((sequence.last(), self._take()))
            self.owners[sequence.last()] -= 1
            sequence.table[sequence.blocks - 1] = copies[-1][1]
        for sequence, count in zip(sequences, counts, strict=True):
            while sequence.blocks * self.page_size < sequence.length + count:
                sequence.add(self._take())
        return copies

    def extend(self, sequence, count):
        """Count tokens as there; return where they go: [(page, place in it, how many), ...]."""
        places = []
        end = sequence.length + count
        while sequence.length < end:
            block, offset = divmod(sequence.length, self.page_size)
            step = min(self.page_size - offset, end - sequence.length)
            places.append((int(sequence.table[block]), offset, step))
            sequence.length += step
        return places

    def _take(self):
        """Take a free page, for one owner."""
        page = self.free.pop()
        self.owners[page] = 1
        return page

    def _release(self, pages):
        """Have one owner less for each of these pages, all different."""
        self.owners[pages] -= 1
        self.free.extend(pages[self.owners[pages] == 0].tolist())

    def state(self):
        """Return everything as arrays."""
        sequences = self.sequences.values()
        tables = [each.table[: each.blocks] for each in sequences]
        return {
            "ids": np.array(list(self.sequences), np.int64),
            "lengths": np.array([each.length for each in sequences], np.int64),
            "evicted": np.array([each.evicted for each in sequences], np.int64),
            "tables": np.concatenate([np.zeros(0, np.int32), *tables]),
            "next_id": np.array(self.next_id),
        }

    def restore(self, arrays):
        """Take over what `state` returned, into a new pool."""
        ids, lengths, evicted, tables = (
            options.integers(name, np.asarray(arrays[name]), "an array of integers")
            for name in ("ids", "lengths", "evicted", "tables")
        )
        next_id = int(arrays["next_id"])
        blocks = -(-lengths // self.page_size)
        fits = (
            lengths.shape == evicted.shape == ids.shape == (ids.size,)
            and tables.size == blocks.sum()
            and ((tables >= 0) & (tables < self.pages)).all()
            and ((lengths >= 0) & (evicted >= 0) & (evicted <= blocks)).all()
        )
        if not fits:
            raise ValueError("arrays: expected tables of pages that are there, got others")
        if ((ids < 0) | (ids >= next_id)).any() or np.unique(ids).size < ids.size:
            raise ValueError(
                f"arrays: expected ids from 0 to {next_id - 1}, each once, got {ids.tolist()}"
            )
        ends = np.cumsum(blocks)
        for name, length, gone, count, end in zip(ids, lengths, evicted, blocks, ends, strict=True):
            table = np.append(tables[end - count : end], 0).astype(np.int32)
            self.next_id = int(name)
            self.add(Sequence(int(length), int(count), int(gone), table))
        self.next_id = next_id
        self.free = np.flatnonzero(self.owners == 0)[::-1].tolist()
