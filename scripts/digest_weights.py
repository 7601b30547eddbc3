"""Say what a checkpoint's tensors are in a dtype, by SHA-256.  Runs in envs/convert.

What files are compared with that hold the tensors so, merged, cut or copied: these are verified without the
checkpoint.  Reads it once, in a stream too.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

from ingot.base import stream
from ingot.base.atomic import replacing
from ingot.base.options import step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors.dtypes import FLOATS
from ingot.parity.adapted import sources as sources_of
from ingot.parity.digests import EMBEDDING, HEAD, digested, kinds_of
from ingot.parity.in_turn import Found, in_turn
from ingot.parity.made import Made


def digest_weights(
    checkpoint: Checkpoint,
    dtype: Annotated[str, "of the files to compare", ("f16", "bf16", "f32")],
    digests: Annotated[Path, "the .json to write"],
) -> None:
    sources, found = sources_of(checkpoint), Found()
    twins = {EMBEDDING, HEAD} if {EMBEDDING, HEAD} <= {*sources} else set()
    progress = Progress(digests.name, sum(one.nbytes for one in sources.values()))
    progress.resume(sum(one.nbytes for name, one in sources.items() if name in found.tensors))

    def look(name: str, one: Tensor) -> None:
        # not codes, nor a number by itself
        weights = one.shape and (one.dtype in FLOATS or isinstance(one, Made))
        kinds = kinds_of(one, dtype, name in twins) if weights else []
        found.add(name, digested(one, kinds))
        progress.add(one.nbytes)

    in_turn([(partial(look, *one), [one[1]]) for one in sources.items()], [found], stream.THREADS)
    if lacks := sorted({*sources} - {*found.tensors}):
        found.lose()
        raise Refused(f"{digests}: {lacks[0]} was found and is lost; stream it again")
    with replacing(digests) as partial_:
        content = {"tensors": {name: found.tensors[name] for name in sorted(sources)}}
        partial_.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    step(digest_weights)
