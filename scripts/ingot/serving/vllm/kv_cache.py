"""How many tokens vLLM's KV cache holds, as its own log says it (vllm.v1.core of 0.32.0).

A block holds some tokens of each layer of a group.  Layers that see a window have groups of their own, as
large as the others', and a request fills blocks of each: of a window no more than it reaches back, beside
what is computed at once.  A layer's state takes a block, and one more for the prefix that others share.
"""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True)
class KvCache:
    """One rank's.  vLLM makes blocks larger where a state needs it: with `states` it is an estimate."""

    layers: int  # that keep keys and values, of the whole model
    sliding: int  # of these, how many see no further than `window` tokens
    window: int
    layer_bytes: int  # of a token in one layer, on one rank
    block: int  # tokens
    stages: int = 1  # pp
    at_once: int = 0  # tokens that are computed before any is given up, over all batches in flight
    states: int = 0  # layers that keep a state instead

    @property
    def group(self) -> int:
        """Layers of a group: as many as of the rarest kind, or as of the other where they differ little."""
        kinds = [one for one in (self.layers - self.sliding, self.sliding, self.states) if one]
        few, many = min(kinds), max(kinds)
        return many if many < 1.5 * few else few

    @property
    def block_bytes(self) -> int:
        """Of a block, for all layers of a group that lie on one rank."""
        return self.layer_bytes * self.block * ceil(self.group / self.stages)

    def blocks(self, length: int) -> int:
        """That a request of `length` tokens may fill."""
        whole = ceil(length / self.block)
        reach = min(self.window - 1 + self.at_once, length)
        seen = ceil(reach / self.block) + 1  # a window need not begin where a block does
        kinds = ((self.layers - self.sliding, whole), (self.sliding, seen), (self.states, 2))
        return sum(ceil(count / self.group) * each for count, each in kinds if count)

    def bytes(self, length: int) -> int:
        """That a request of `length` tokens may take."""
        return self.blocks(length) * self.block_bytes

    def tokens(self, held: int, length: int) -> int:
        """That `held` bytes hold, in requests of `length` tokens."""
        return int(held // self.block_bytes / self.blocks(length) * length)

    def longest(self, held: int) -> int:
        """Tokens of the longest request that `held` bytes hold."""
        count = held // self.block_bytes
        low, high = 0, count * self.block  # the whole blocks alone would allow so much
        if not self.sliding and not self.states:
            return high
        if self.sliding == self.layers and self.blocks(1 << 40) <= count:
            return 1 << 40  # what lies behind the window is given up
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.blocks(middle) <= count else (low, middle - 1)
        return low
