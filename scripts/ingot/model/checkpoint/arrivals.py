"""Which tensors of a checkpoint are here, while it comes in pieces: what is due in which pass of a writer.

A writer goes through all that it writes once for each piece.  In pass n that is due of which the last piece
is n.  A pass before them all, in which nothing is due, tells how long each piece is needed.
"""

from collections.abc import Collection, Iterator
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
        self.now: int | None = None  # the pass; None: the one before them all

    def _piece_of(self, shard: int, tensor: Tensor) -> int:
        """Refused: a tensor that lies in none of the pieces."""
        for number, piece in enumerate(self.pieces.pieces):
            inside = piece.first <= tensor.offset and tensor.offset + tensor.nbytes <= piece.last
            if piece.shard == shard and inside:
                return number
        raise Refused(f"{tensor.path}: tensor {tensor.name} is in no piece; stream it again")

    def due(self, names: Collection[str]) -> bool:
        """Is what is made of these tensors written in this pass?"""
        own = [self.place[name] for name in names if name in self.place]
        turn = max(own, default=0)
        if self.now is None:
            for piece in own:
                self.until[piece] = max(self.until[piece], turn)
        return self.now == turn

    def passes(self, outs: Collection[Any]) -> Iterator[None]:
        """One turn a pass, each once its piece is here; in the end every shard holds what the hub says.

        `outs` are the stream.Output that the writer fills: on the disk at the end of each shard.
        """
        yield
        found = self.pieces.done(self.writer) or Done(self.until)
        if lost := [out for out in outs if out.fresh and found.done]:
            self.pieces.report(self.writer, Done(self.until))
            raise Refused(f"{lost[0].path}: what was written of it is gone; stream it again")
        self.pieces.report(self.writer, found)
        all_of = self.pieces.pieces
        for number in range(found.done, len(all_of)):
            pieces.wait_for(lambda number=number: self.pieces.come["pieces"] > number)
            self.now = number
            yield
            found.done = number + 1
            if number + 1 == len(all_of) or all_of[number + 1].shard != all_of[number].shard:
                for out in outs:
                    out.sync()
                found.durable = found.done
            self.pieces.report(self.writer, found)
        pieces.wait_for(lambda: self.pieces.come["whole"] == len(self.pieces.shards))
