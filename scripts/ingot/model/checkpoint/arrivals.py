"""Which tensors of a checkpoint are here, while it comes in pieces: what is due in which pass of a writer.

A writer goes through all that it writes once for each piece.  In pass n that is due of which the last piece
is n.  A pass before them all, in which nothing is due, tells how long each piece is needed.
"""

from collections.abc import Collection, Hashable, Iterator
from pathlib import Path
from typing import Any

from ingot.base import pieces
from ingot.base.pieces import Done, Pieces
from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor


class Arrivals:
    """The pieces as one writer sees them; `tensors` are the checkpoint's, by name."""

    def __init__(self, where: Path, writer: str, tensors: dict[str, Tensor]):
        self.pieces, self.writer = Pieces(where), writer
        self.place = {}  # of those that come, by name: the piece
        shards = {name: number for number, name in enumerate(self.pieces.shards)}
        for name, tensor in tensors.items():
            if tensor.path.parent == where / "shards":
                shard = shards[tensor.path.name]
                self.place[name] = self._piece_of(shard, tensor)
        self.until = [-1] * len(self.pieces.pieces)
        self.turns: dict[Hashable, int] = {}  # the pass in which each is due
        self.now: int | None = None  # the pass; None: the one before them all

    def _piece_of(self, shard: int, tensor: Tensor) -> int:
        """Refused: a tensor that lies in none of the pieces."""
        for number, piece in enumerate(self.pieces.pieces):
            inside = piece.first <= tensor.offset and tensor.offset + tensor.nbytes <= piece.last
            if piece.shard == shard and inside:
                return number
        raise Refused(f"{tensor.path}: tensor {tensor.name} is in no piece; stream it again")

    def note(self, key: Hashable, names: Collection[str]) -> None:
        """What is called `key` is made of these tensors: it is due once the last of them is here.

        Refused: after the first pass, since a piece that nobody asked for then may be gone.
        """
        if self.now is not None:
            raise Refused(
                f"{key}: asked for in pass {self.now}, expected it in the first; stream again"
            )
        own = [self.place[name] for name in names if name in self.place]
        self.turns[key] = turn = max(own, default=0)
        for piece in own:
            self.until[piece] = max(self.until[piece], turn)

    def passes(self, outs: Collection[Any]) -> Iterator[None]:
        """One turn a pass, each once its piece is here; in the end every shard holds what the hub says.

        `outs` are what the writer fills, such as stream.Output: on the disk at the end of each shard.
        """
        yield
        found = self.pieces.done(self.writer)
        if found is None and self.pieces.come["freed"]:
            pieces.forget()
            (self.pieces.where / "lost").touch()
            raise Refused(
                f"{self.pieces.where}: what was written is gone, and pieces are; stream again"
            )
        found = found or Done(self.until)
        found.stale = False
        self.pieces.report(self.writer, found)
        all_of = self.pieces.pieces
        for number in range(found.done, len(all_of)):
            pieces.wait_for(lambda number=number: self.pieces.come["pieces"] > number)
            self.now = number
            yield
            found.done = number + 1
            ends = number + 1 == len(all_of) or all_of[number + 1].shard != all_of[number].shard
            for out in outs if ends else ():
                out.sync()
            found.durable = found.done if ends else found.durable
            self.pieces.report(self.writer, found, durable=ends)
        pieces.wait_for(lambda: self.pieces.come["whole"] == len(self.pieces.shards))
