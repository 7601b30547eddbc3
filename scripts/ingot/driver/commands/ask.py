"""Serve a shortfin bundle on this machine and ask it once, by the model's chat template."""

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.base.sealed import sealed
from ingot.driver.catalogue import schema
from ingot.driver.catalogue.targets import model_of
from ingot.driver.release import older
from ingot.driver.toolchains import toolchains
from ingot.formats.iree.shortfin import Server
from ingot.store.records import Store

PROMPT = (  # and how many tokens it has
    "import json, pathlib, sys; from ingot.parity.tokenizer_folder import chat_of, ids_of; "
    "bundle, text, whole = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]; "
    "chat = None if whole else chat_of(bundle); "
    "text = chat([{'role': 'user', 'content': text}]) if chat else text; "
    "print(json.dumps([text, len(ids_of(bundle)(text))]))"
)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="such as artifacts/M_tp1.shortfin")
    parser.add_argument("text", help="the question; with special tokens in it, the whole prompt")
    parser.add_argument(
        "--raw", action="store_true", help="the prompt as it is, without a template"
    )


def run(root: Path, options: Namespace) -> None:
    if not (options.bundle / "tokenizer.json").is_file():
        raise Refused(instead(options.bundle))
    if not options.text.strip():
        raise Refused("the question is empty, expected some words")
    sealed(options.bundle)
    target = str(options.bundle)
    for reason in older.why(root, Store(), schema.load(root), [target]).values():
        print(older.sentence(target, reason), file=sys.stderr)
    python = toolchains.build(root, "iree") / "bin/python"
    tokens = read_json(options.bundle / "tokenizer.json").get("added_tokens", [])
    whole = options.raw or any(one["content"] in options.text for one in tokens if one["special"])
    text, count = prompt(root, python, options.bundle, options.text, whole)
    most = read_json(options.bundle / "config.json")["max_seq_len"]
    if count >= most:
        raise Refused(f"the question has {count} tokens, expected fewer than {most}, its context")
    with Server(options.bundle, python) as server:
        print(server.generate(text=text))


def instead(path: Path) -> str:
    """What to do where `path` is no shortfin bundle on disk."""
    target = f"artifacts/{model_of(path.name)}_tp1.cpu.shortfin"
    if path.name.endswith(".shortfin"):
        return f"{path}: not built yet, or no bundle; `snakemake {path}` builds it"
    served = (
        f"a GGUF file is served by `llama-server -m {path}`; " if path.suffix == ".gguf" else ""
    )
    return f"{path}: no shortfin bundle; {served}to ask the model here: snakemake {target}"


def prompt(root: Path, python: Path, bundle: Path, text: str, whole: bool) -> tuple[str, int]:
    """The question by the model's own chat template, where it has one and the text is not the whole
    prompt; and how many tokens that is."""
    words = [python, "-P", "-c", PROMPT, bundle, text, *(["whole"] if whole else [])]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(root / "scripts"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise Refused(
            f"{bundle}: its chat template cannot be rendered ({last[0]}); --raw asks without it"
        )
    return json.loads(done.stdout.splitlines()[-1])
