"""ONNX by the real steps: other shapes, the same bytes on every run, refusals in one line."""

import json
import shutil
import subprocess

import numpy as np
import pytest

import checkpoints
from conftest import ROOT

pytestmark = pytest.mark.slow
DEMO = checkpoints.DEMO
NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
CONSUMER = """
import json, sys
import numpy as np, torch, onnxruntime
from transformers import AutoModelForCausalLM
for checkpoint, folders in json.loads(sys.argv[1]):
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = torch.randint(0, 1000, (1, 40), generator=torch.Generator().manual_seed(1))
    wanted = model(ids).logits[0].detach().numpy()
    for folder in folders:
        session = onnxruntime.InferenceSession(folder + "/model.onnx")
        feed = {"input_ids": ids.numpy(), "attention_mask": np.ones((1, 40), np.int64),
                "position_ids": np.arange(40)[None]}
        for one in session.get_inputs():
            if "past" in one.name:
                dtype = np.float16 if "16" in one.type else np.float32
                feed[one.name] = np.zeros((1, one.shape[1], 0, one.shape[3]), dtype)
        feed = {one.name: feed[one.name] for one in session.get_inputs()}
        found = session.run(["logits"], feed)[0][0]
        print(folder, np.abs(found - wanted).max() / np.abs(wanted).max())
"""
KINDS = (
    "nemo",
    "both biases",
    "one KV head",
    "heads of 24",
    "Llama 3.2",
    "as many KV heads",
    "Qwen2",
    "Qwen3, tied",
)
WAYS = {  # options, and the largest difference of a logit, as a share of the largest logit
    "fp32": (("--dtype=fp32",), 1e-4),
    "fused": (("--dtype=fp32", "--graph=fused"), 1e-4),
    "fp16": (("--dtype=fp16",), 0.01),
    "int8": (("--dtype=int8", "--block=16"), 0.1),
}


def small(folder):
    return ["--tokenizer", *(folder / name for name in NAMES if (folder / name).exists())]


@pytest.fixture
def export(ok, tmp_path):
    """export(checkpoint, name, *words) is the ONNX folder of that name."""

    def run(checkpoint, name, *words):
        place = tmp_path / name
        ok(
            "onnx", "export_onnx.py", "--checkpoint", checkpoint, *small(checkpoint), *words,
            "--onnx", place,
        )  # fmt: skip
        return place

    return run


def test_other_shapes_give_transformers_logits(export, python, tmp_path):
    """Tied embeddings, head_dim that is not hidden / heads, biases, KV heads one or all, norms of heads."""
    asked = []
    for kind in KINDS:
        folder = tmp_path / kind.replace(" ", "-")
        if kind == "nemo":
            checkpoints.nemo(folder, tame=True)
        else:
            checkpoints.variant(folder, kind, tame=True)
        found = []
        for way, (words, _) in WAYS.items():
            if (way, kind) != ("fused", "heads of 24"):
                found.append(str(export(folder, f"{folder.name}.{way}", *words)))
        asked.append((str(folder), found))
    done = subprocess.run(
        [str(python("optimum")), "-c", CONSUMER, json.dumps(asked)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("/")]
    assert len(lines) == sum(len(found) for _, found in asked)
    for folder, away in lines:
        assert float(away) <= WAYS[folder.rsplit(".", 1)[1]][1], (folder, away)


def digests(folder):
    return dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())


def finetuned(folder):
    """The demo with one layer's weights changed."""
    shutil.copytree(DEMO, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())["weight_map"]
    for name in (n for n in index if n.startswith("model.layers.2.") and n.endswith("proj.weight")):
        path = folder / index[name]
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:8], "little")
        start, end = json.loads(data[8 : 8 + length])[name]["data_offsets"]
        values = np.frombuffer(data, "<u2", (end - start) // 2, offset=8 + length + start).copy()
        data[8 + length + start : 8 + length + end] = (values ^ 1).tobytes()
        path.write_bytes(data)
    return folder


@pytest.mark.parametrize("words", [(), ("--dtype=fp16",), ("--dtype=int8",)], ids=str)
def test_a_second_run_gives_the_same_bytes_and_a_finetune_costs_its_layer(words, export, tmp_path):
    one = export(DEMO, "one", *words)
    shutil.copytree(DEMO, tmp_path / "elsewhere" / "demo")
    again = export(tmp_path / "elsewhere" / "demo", "deeper-and-longer/again", *words)
    assert digests(one) == digests(again)
    other = export(finetuned(tmp_path / "tuned"), "other", *words)
    before = set(digests(one).values())
    new = [name.strip() for name, digest in digests(other).items() if digest not in before]
    assert all(name.startswith("model.layers.2.") for name in new), new
    layer = sum(p.stat().st_size for p in one.glob("model.layers.2.*"))
    assert 0 < sum((other / name).stat().st_size for name in new) <= 1.1 * layer


EMBEDDING = """
import sys, torch
from safetensors.torch import load_file
for folder in sys.argv[1:]:
    found, wanted = torch.load(folder + "/embed_tokens.pt"), load_file(folder + "/embed_tokens.safetensors")
    assert torch.equal(found, wanted["weight"]) and found.shape == (1024, 512)
    print(found.dtype)
"""


def test_torch_loads_the_embedding_that_was_written_without_it(ok, python, tmp_path):
    folders = [tmp_path / dtype for dtype in ("fp16", "fp32")]
    for folder in folders:
        ok(
            "onnx", "split_onnx.py", "--checkpoint", DEMO, *small(DEMO), "--dtype", folder.name,
            "--layers", "1", "--torchpipe", folder,
        )  # fmt: skip
    done = subprocess.run(
        [python("iree"), "-c", EMBEDDING, *folders], capture_output=True, text=True
    )
    assert done.stdout.split() == ["torch.float16", "torch.float32"], done.stderr


# What is refused, in one line


def refused(done, *parts):
    assert done.returncode != 0
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith(("[", " ")))
    for part in parts:
        assert part in line, line
    assert "Traceback" not in done.stderr


ASKED = [
    (("--max-length=4096",), "a context of 512 tokens, expected 4096 or more for onnx.max_length"),
    (("--dtype=int8", "--float-layers", "mlp.middle"), "has no layer mlp.middle, expected one for"),
]  # fmt: skip


@pytest.mark.parametrize("words, reason", ASKED)
def test_what_the_model_does_not_have_is_refused(words, reason, step, tmp_path):
    done = step(
        "onnx",
        "export_onnx.py",
        "--checkpoint",
        DEMO,
        *small(DEMO),
        *words,
        "--onnx",
        tmp_path / "o",
    )
    refused(done, "config.json: ", reason)
    assert not (tmp_path / "o").exists()


def test_heads_that_the_fused_operator_has_no_kernel_for_are_refused(step, tmp_path):
    folder = checkpoints.variant(tmp_path / "m", "heads of 24")
    done = step(
        "onnx", "export_onnx.py", "--checkpoint", folder, *small(folder), "--graph=fused", "--onnx",
        tmp_path / "o",
    )  # fmt: skip
    refused(
        done, "heads of 24 values, expected a multiple of 16 for onnx.graph fused", "set portable"
    )


def test_a_block_that_does_not_divide_is_refused(step, tmp_path):
    folder = checkpoints.variant(tmp_path / "m", "odd width")
    done = step(
        "onnx", "export_onnx.py", "--checkpoint", folder, *small(folder), "--dtype=int8", "--block=64",
        "--onnx", tmp_path / "o",
    )  # fmt: skip
    refused(
        done, "rows of 352 values, expected a multiple of onnx.block, 64; set a block that divides"
    )


def test_nan_in_a_weight_is_refused_and_nothing_is_left(step, tmp_path):
    folder = checkpoints.nemo(tmp_path / "m")
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2:] = b"\xff\xff"
    path.write_bytes(data)
    done = step(
        "onnx", "export_onnx.py", "--checkpoint", folder, *small(folder), "--dtype=int8",
        "--onnx", tmp_path / "o",
    )  # fmt: skip
    refused(done, "holds NaN; the checkpoint is damaged")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.fixture
def verify(step, tmp_path):
    """verify(folder) holds an ONNX folder against the demo; its reference is never reached."""

    def run(folder, *words):
        unread = [
            w
            for name in ("reading", "reference", "texts", "scores")
            for w in (f"--{name}", "unread")
        ]
        # sealed again: what is planted is what somebody wrote
        subprocess.run(
            "find . ! -type d ! -name SHA256SUMS -printf '%P\\n' | sort | xargs sha256sum >SHA256SUMS",
            shell=True, cwd=folder, check=True,
        )  # fmt: skip
        return step(
            "onnx", "verify_onnx.py", "--checkpoint", DEMO, *small(DEMO), *words, "--onnx", folder, *unread,
            "--record", tmp_path / "record.json",
        )  # fmt: skip

    return run


def located(name):
    """Rewrites the graph so that its first external tensor lies in `name`."""

    def plant(folder):
        data = (folder / "model.onnx").read_bytes()
        old, new = b"model.embedding.data", name.encode(errors="surrogateescape").ljust(20, b"x")
        assert old in data and len(new) == len(old)
        (folder / "model.onnx").write_bytes(data.replace(old, new))

    return plant


def linked(folder):
    shutil.move(folder / "model.head.data", folder.parent / "elsewhere")
    (folder / "model.head.data").symlink_to(folder.parent / "elsewhere")


def edited(name, key, value):
    def plant(folder):
        document = json.loads((folder / name).read_bytes())
        *path, last = key.split(".")
        inner = document
        for word in path:
            inner = inner[word]
        inner[last] = value
        (folder / name).write_text(json.dumps(document))

    return plant


def cut(name, by):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:by])


def of_another_model(folder):
    data = bytearray((folder / "model.layers.1.data").read_bytes())
    data[5000] ^= 64
    (folder / "model.layers.1.data").write_bytes(data)


def sparse(folder):
    (folder / "model.onnx").open("r+b").truncate(2_200_000_000)


PLANTED = {
    "cut short": (cut("model.layers.1.data", -100), "model.layers.1.data: ", "it was cut short"),
    "missing": (lambda f: (f / "model.head.data").unlink(), "missing, expected the data of model.norm"),
    "above": (located("../../secret"), "expected a file inside the folder"),
    "absolute": (located("/etc/passwd"), "expected a file inside the folder"),
    "no text": (located("\udcff"), "not an ONNX graph, expected one"),
    "linked": (linked, "model.head.data', expected a file inside the folder"),
    "another model's": (of_another_model, "not the checkpoint's in F32"),
    "no graph": (cut("model.onnx", 77), "not an ONNX graph, expected one"),
    "too large": (sparse, "2.2 GB, expected at most 2.1, protobuf's limit, and the weights"),
    "too long": (edited("genai_config.json", "search.max_length", 4096), "at most the model's context"),
    "other layers": (
        edited("genai_config.json", "model.decoder.num_hidden_layers", 3), "is 3, expected the graph's 4",
    ),
    "other context": (edited("genai_config.json", "model.context_length", 9), "is 9, expected the graph's"),
    "another end": (edited("genai_config.json", "model.eos_token_id", [1]), "its bytes differ"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_damaged_or_foreign_folder_is_refused(fault, export, verify):
    plant, *parts = PLANTED[fault]
    folder = export(DEMO, "onnx")
    plant(folder)
    refused(verify(folder), *parts)


def test_without_the_rope_scaling_the_check_fails(ok, export, reading, step, tmp_path):
    """The check itself, shown: the weights are the demo's, and the tokens are not."""
    folder = tmp_path / "unscaled"
    shutil.copytree(DEMO, folder)
    config = json.loads((folder / "config.json").read_bytes())
    config["rope_scaling"] = None
    checkpoints.write_json(folder / "config.json", config)
    onnx = export(folder, "onnx")
    reference = tmp_path / "reference.npz"
    ok(
        "transformers", "generate_reference.py", "--checkpoint", DEMO, "--prompts", DEMO / "prompts.txt",
        *reading(DEMO), "--reference", reference,
    )  # fmt: skip
    texts = tmp_path / "texts.json"
    texts.write_text(
        '{"strings": [], "lines": [], "chats": [], "corpus": [], "corpus_sha256": "", "corpus_tokens": 0,'
        ' "vocabulary": {"ends": [1017, 1020]}}'
    )
    done = step(
        "onnx", "verify_onnx.py", "--checkpoint", folder, *small(folder), "--onnx", onnx, *reading(DEMO),
        "--reference", reference, "--texts", texts, "--scores", "unread",
        "--record", tmp_path / "record.json",
    )  # fmt: skip
    refused(done, "of 26 prompts continue as transformers does", "expected all")


def test_a_full_disk_is_said_before_any_work(python, tmp_path):
    """On a file system of 8 MB, which a mount namespace has."""
    words = [python("onnx"), ROOT / "scripts/export_onnx.py", "--checkpoint", DEMO, *small(DEMO)]
    script = 'mount -t tmpfs -o size=8m none $0 && cd $0 && shift 0 && exec "$@" --onnx o'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, str(tmp_path), *map(str, words)],
        capture_output=True, text=True,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no mount namespace here")
    refused(done, "MB do not fit on the disk; free some space")
