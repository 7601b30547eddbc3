"""Ask a model once on this machine's CPU: a GGUF, ONNX or OpenVINO file, or a shortfin bundle.

    ingot ask artifacts/M.q4_k_m.gguf "Who are you?"

By its chat template, in the runtime that serves the form; each next token is the likeliest one.
"""

import json
import signal
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.base.sealed import SUMS, sealed
from ingot.driver.catalogue import schema, targets
from ingot.driver.commands import speed
from ingot.driver.commands.serve import stop_on_missing
from ingot.driver.commands.targets import above_0, add_catalogue
from ingot.driver.release import older
from ingot.driver.toolchains import toolchains
from ingot.formats.iree.shortfin import Server
from ingot.store.records import Store

STEP = "scripts/answer_question.py"
PROMPT = (  # and how many tokens it has
    "import json, pathlib, sys; from ingot.parity.tokenizer_folder import chat_of, ids_of; "
    "bundle, text, whole = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]; "
    "chat = None if whole else chat_of(bundle); "
    "text = chat([{'role': 'user', 'content': text}]) if chat else text; "
    "print(json.dumps([text, len(ids_of(bundle)(text))]))"
)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("form", type=Path, help="such as artifacts/M.q4_k_m.gguf")
    parser.add_argument(
        "text", nargs="+", help="the question; with special tokens in it, the whole prompt"
    )
    parser.add_argument(
        "--raw", action="store_true", help="the prompt as it is, without a template"
    )
    parser.add_argument(
        "--tokens", type=above_0(int), default=256, help="of the answer, at most (default: 256)"
    )
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> int:
    form, options.text = options.form, " ".join(options.text)
    catalogue = schema.load(root, options.configfile)
    if not options.text.strip():
        raise Refused("the question is empty, expected some words")
    try:
        options.text.encode()
    except UnicodeEncodeError:
        raise Refused("the question is not UTF-8, expected a text") from None
    bundle = form.suffix == ".shortfin"
    if not bundle and not speed.runs(form):
        raise Refused(instead(form, catalogue))
    if not form.exists():
        stop_on_missing(form, catalogue, options.configfile)
    if form.is_dir() != (form.suffix != ".gguf"):
        raise Refused(f"{form}: a part of an artifact, expected the whole; name its folder")
    if (form / SUMS).is_file():
        sealed(form)
    older.told(root, Store(), catalogue, [str(form)])
    if bundle:
        print(by_shortfin(root, options))
        return 0
    python = toolchains.build(root, speed.TOOLCHAINS[form.suffix]) / "bin/python"
    with tempfile.TemporaryDirectory() as folder:
        question = Path(folder, "question.txt")  # a command line holds 128 kB
        question.write_text(options.text)
        words = [python, root / STEP, "--artifact", form, "--question", question]
        words += ["--tokens", options.tokens, *(["--raw"] if options.raw else [])]
        status = subprocess.run([str(word) for word in words], check=False).returncode
    if status < 0:
        raise Refused(
            f"{form}: its runtime was killed by {signal.Signals(-status).name}; `ingot fit {form}` says "
            "what memory it takes"
        )
    return status


def by_shortfin(root: Path, options: Namespace) -> str:
    """The answer of a server that is started for it."""
    python = toolchains.build(root, "iree") / "bin/python"
    tokens = read_json(options.form / "tokenizer.json").get("added_tokens", [])
    whole = options.raw or any(one["content"] in options.text for one in tokens if one["special"])
    text, count = prompt(root, python, options.form, options.text, whole)
    context = read_json(options.form / "config.json")["max_seq_len"]
    if count >= context:
        raise Refused(
            f"the question has {count} tokens, expected fewer than {context}, its context"
        )
    with Server(options.form, python) as server:
        return server.generate(min(options.tokens, context - count), text=text)


def instead(path: Path, catalogue: dict) -> str:
    """What to do where `path` is no form that can be asked."""
    name = targets.model_of(path.name)
    such = f"{targets.FOLDER}{name if name in catalogue['models'] else 'M'}.gguf"
    kinds = ", ".join((*speed.TOOLCHAINS, ".shortfin"))
    return f"{path}: not asked here, expected one of {kinds}, such as {such}"


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
