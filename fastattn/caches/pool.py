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

    def __setstate__(self, state):
        vars(self).update(state)
        self.table = self.table.copy()  # pickle may give one that is read-only

    def pages(self):
        """Pages that the sequence has."""
        return self.table[self.evicted : self.blocks]

    def last(self):
        """The page of the last token."""
        return int(self.table[self.blocks - 1])

    def set_aside(self, blocks, pages):
        """Name pages behind the entries in use, up to `blocks`; the table doubles when full."""
        for block in range(self.blocks, blocks):
            if block == self.table.size:
                self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self.table[block] = next(pages)

    def drop(self, begin, end):
        """Forget a range of entries; return the pages that they named."""
        pages = self.table[begin:end].copy()
        self.table[begin:end] = 0
        return pages


def lengths_of(sequences):
    """Return the tokens of each sequence, int64 (B,)."""
    return np.array([each.length for each in sequences], np.int64)


def table_of(sequences):
    """Return the pages of each sequence, int32 (B, blocks), 0 where there is none."""
    blocks = max((each.blocks for each in sequences), default=0)
    table = np.zeros((len(sequences), blocks), np.int32)
    for row, each in enumerate(sequences):
        table[row, : each.blocks] = each.table[: each.blocks]
    return table


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

    def __setstate__(self, state):
        vars(self).update(state)
        self.owners = self.owners.copy()  # as the tables of sequences

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
            listed = list(ids) if isinstance(ids, range) else ids
            names = options.integers("ids", listed, "an integer or integers").reshape(-1).tolist()
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
        """Find pages for so many more tokens of each sequence: for all or, ValueError, for none.

        Nothing is taken before `commit`, so that all stays as it is where writing breaks off.

        Returns
        -------
        pages : list of int
            Free pages that are needed.
        copies : dict of int to (int, int)
            By number of the sequence: its last page, which others share, and where to copy it.
        """
        needed, growing, sharing = 0, [], {}
        for b, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            if not count:
                continue
            blocks = -(-(sequence.length + count) // self.page_size)
            if blocks > sequence.blocks:
                needed += blocks - sequence.blocks
                growing.append((sequence, blocks))
            if sequence.length % self.page_size:
                last = sequence.last()
                if self.owners[last] > 1:
                    sharing.setdefault(last, []).append(b)
        for last, among in sharing.items():
            if len(among) == self.owners[last]:
                # One needs no copy: the longest, which does not write where the others have tokens.
                among.remove(max(among, key=lambda b: (sequences[b].length, b)))
        needed += sum(map(len, sharing.values()))
        if needed > len(self.free):
            raise ValueError(
                f"k: expected tokens that fit into the free pages, {len(self.free)}, got tokens "
                f"that need {needed} (free or evict sequences)"
            )
        if not needed:
            return [], {}
        pages = self.free[: -needed - 1 : -1]
        fresh = iter(pages)
        copies = {b: (last, next(fresh)) for last, among in sharing.items() for b in among}
        for sequence, blocks in growing:
            sequence.set_aside(blocks, fresh)
        return pages, copies

    def places(self, sequence, count, copy=None):
        """Return where tokens go that come next: [(page, place in it, how many), ...].

        With a copy (old, new) of the last page, those of the old one go to the new one.
        """
        places = []
        position = sequence.length
        end = position + count
        while position < end:
            block, offset = divmod(position, self.page_size)
            step = min(self.page_size - offset, end - position)
            page = int(sequence.table[block])
            places.append((copy[1] if copy and page == copy[0] else page, offset, step))
            position += step
        return places

    def commit(self, sequences, counts, pages, copies):
        """Take the pages that `reserve` found, and count the tokens as there."""
        if pages:
            del self.free[-len(pages) :]
            self.owners[pages] = 1
        for b, (old, new) in copies.items():
            sequences[b].table[sequences[b].blocks - 1] = new
            self.owners[old] -= 1
        for sequence, count in zip(sequences, counts, strict=True):
            end = sequence.length + count
            sequence.blocks, sequence.length = -(-end // self.page_size), end

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
            options.integers(name, arrays[name], "an array of integers")
            for name in ("ids", "lengths", "evicted", "tables")
        )
        most = options.LARGEST_OFFSET
        [next_id] = options.per_batch("next_id", arrays["next_id"], (), 0, most).tolist()
        blocks = -(-lengths // self.page_size)
        fits = (
            lengths.shape == evicted.shape == ids.shape == (ids.size,)
            and tables.size == blocks.sum()
            and ((tables >= 0) & (tables < self.pages)).all()
            and ((lengths >= 0) & (evicted >= 0) & (evicted <= lengths // self.page_size)).all()
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
            sequence = Sequence(int(length), int(count), int(gone), table)
            pages, uses = np.unique(sequence.pages(), return_counts=True)
            if (uses > 1).any():
                twice = pages[uses > 1][0]
                raise ValueError(f"arrays: expected each page once in a table, got {twice} again")
            self.next_id = int(name)
            self.add(sequence)
        self.next_id = next_id
        self.free = np.flatnonzero(self.owners == 0)[::-1].tolist()
