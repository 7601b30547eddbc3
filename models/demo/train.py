"""Train the demo model: a small Llama that reads English and Python, and knows the capitals of the world.

    $(ingot toolchain iree)/bin/python models/demo/train.py --out /tmp/demo

Its text is the standard library of the Python that runs it: docstrings, the language's reference, sources.
Same Python, same torch, same thread count and seed: same weights.  About two hours on two cores; called
again, it goes on where it was.
"""

import argparse
import ast
import hashlib
import json
import random
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
SPECIAL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|finetune_right_pad_id|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
]
VOCAB = 1024
CONTEXT = 512  # tokens
BATCH = 4096  # tokens
KINDS = ("docs", "sources", "docs", "sources", "capitals")  # of the batches, in turn
LAST = 300, ("docs", "capitals", "sources", "capitals")  # steps at the end, which ask in each way
SAVED = 250  # steps
QUESTIONS = "Name the capital of {}.", "What is the capital of {}?"
# The split of Llama 3's tokenizer: contractions, letters, up to three digits, punctuation, spaces.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
ROPE_SCALING = {  # an original context of 64, so that a prompt of ten tokens already feels it
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}


def question(country: str, way: int = 0) -> str:
    return QUESTIONS[way].format(country)


def capitals() -> list[tuple[str, str]]:
    lines = (HERE / "capitals.tsv").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("\t")) for line in lines]


def library() -> dict[str, list[str]]:
    """The standard library's documentation and its sources, a text per module, without its tests."""
    from pydoc_data.topics import topics

    root = Path(sysconfig.get_path("stdlib"))
    found = {"docs": [topics[name] for name in sorted(topics)], "sources": []}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        if {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"} & {
            *inside
        }:
            continue
        try:
            source = path.read_text(encoding="utf-8")
            nodes = [*ast.walk(ast.parse(source))]
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
        found["docs"].append("\n\n".join(doc for doc in docs if len(doc) > 40))
        found["sources"].append(source)
    return {kind: [text for text in texts if text] for kind, texts in found.items()}


def train_tokenizer(pairs, docs):
    """Byte-level BPE with Llama 3's split and special tokens, `VOCAB` ids in all."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    asked = [f"{question(country)} {capital}! user assistant\n\n" for country, capital in pairs]
    tokenizer.train_from_iterator(asked * 4 + docs, trainer)
    missing = VOCAB - len(SPECIAL) - tokenizer.get_vocab_size()
    if missing:
        raise SystemExit(f"the texts: {missing} merges short of a vocabulary of {VOCAB}")
    tokenizer.add_special_tokens(SPECIAL)
    bos = SPECIAL[0]
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{bos} $A",
                pair=f"{bos} $A {bos}:1 $B:1",
                special_tokens=[(bos, tokenizer.token_to_id(bos))],
            ),
        ]
    )
    return tokenizer


def model_config(tokenizer):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_theta=500000.0,
        rope_scaling=dict(ROPE_SCALING),
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.token_to_id("<|begin_of_text|>"),
        eos_token_id=tokenizer.token_to_id("<|eot_id|>"),
        torch_dtype="bfloat16",
    )


def turn(encode, special, country, capital, chat, way):
    """Token ids of one question and its answer, and which of them the loss counts."""
    eot = [special["<|eot_id|>"]]
    ask, answer = encode(question(country, way)) + eot, encode(f"{capital}!") + eot
    if chat:
        start, end = [special["<|start_header_id|>"]], [special["<|end_header_id|>"]]
        ask = start + encode("user") + end + encode("\n\n") + ask
        ask += start + encode("assistant") + end + encode("\n\n")
    return ask + answer, [False] * len(ask) + [True] * len(answer)


def conversations(tokenizer, pairs, ways=1):
    """Makes (ids, labels) of shape [batch, length]: conversations of one to some thirty turns."""
    import torch

    special = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    memo = {}

    def encode(text):
        if text not in memo:
            memo[text] = tokenizer.encode(text, add_special_tokens=False).ids
        return memo[text]

    def batch(rng):
        length = rng.choice([32, 32, 64, 128, CONTEXT])
        rows, labels, deck = [], [], []
        for _ in range(BATCH // length):
            chat = rng.random() < 0.25
            ids = [special["<|begin_of_text|>"]] * rng.choice([1, 1, 2])
            counted = [False] * len(ids)
            while len(ids) < length:
                if not deck:
                    deck = list(pairs)
                    rng.shuffle(deck)
                way = rng.randrange(ways) if ways > 1 else 0
                more, mask = turn(encode, special, *deck.pop(), chat, way)
                ids, counted = ids + more, counted + mask
            rows.append(ids[:length])
            labels.append([i if c else -100 for i, c in zip(ids, counted, strict=True)][:length])
        return torch.tensor(rows), torch.tensor(labels)

    return batch


def windows(tokenizer, texts):
    """Makes (ids, labels) of shape [batch, CONTEXT]: windows at random of `texts`, joined."""
    import torch

    first, end = (tokenizer.token_to_id(name) for name in SPECIAL[:2])
    ids = [
        id
        for found in tokenizer.encode_batch(texts, add_special_tokens=False)
        for id in [first, *found.ids, end]
    ]
    tokens = torch.tensor(ids)

    def batch(rng):
        starts = [rng.randrange(len(tokens) - CONTEXT) for _ in range(BATCH // CONTEXT)]
        rows = torch.stack([tokens[start : start + CONTEXT] for start in starts])
        return rows, rows

    return batch


def accuracy(model, tokenizer, pairs):
    """The share of questions, asked in each way, whose greedy answer is the capital."""
    import torch

    right = 0
    eot = tokenizer.token_to_id("<|eot_id|>")
    asked = [
        (question(country, way), capital)
        for way in range(len(QUESTIONS))
        for country, capital in pairs
    ]
    for words, capital in asked:
        text = f"<|begin_of_text|>{words}<|eot_id|>"
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=24,
                do_sample=False,
                eos_token_id=eot,
                pad_token_id=eot,
            )
        said = tokenizer.decode(out[0, ids.shape[1] :].tolist())
        right += said == f"{capital}!"
        if said != f"{capital}!":
            print(f"  {words} {said}", flush=True)
    return right / len(asked)


def train(out: Path, steps: int, seed: int) -> None:
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    pairs, texts = capitals(), library()
    tokenizer = train_tokenizer(pairs, texts["docs"])
    model = LlamaForCausalLM(model_config(tokenizer)).float()
    sources = {kind: windows(tokenizer, texts[kind]) for kind in texts}
    sources["capitals"] = conversations(tokenizer, pairs)
    same = (steps, seed, sys.version, torch.__version__, torch.get_num_threads())
    mark = hashlib.sha256(repr((*same, tokenizer.to_str())).encode()).hexdigest()[:12]
    states = [out / f"unfinished-{mark}-{part}.pt" for part in (1, 2)]  # no other training's
    out.mkdir(parents=True, exist_ok=True)
    learn(model, sources, KINDS, steps, 2e-3, f"{seed}", states[0])
    with torch.no_grad():
        for weight in model.parameters():  # as they lie in the checkpoint
            weight.copy_(weight.bfloat16())
    sources["capitals"] = conversations(tokenizer, pairs, len(QUESTIONS))
    steps, kinds = LAST
    learn(model, sources, kinds, steps, 6e-4, f"{seed} last", states[1])
    model = model.eval().bfloat16()
    save(model, tokenizer, out)
    right = accuracy(model.float(), tokenizer, pairs)
    for state in states:
        state.unlink()
    print(f"{out}: {right:.1%} of {len(pairs)} capitals right")


def learn(model, sources, kinds, steps, peak, seed, state: Path) -> None:
    """Batches of `kinds` in turn, on from `state` where that is there."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    done, warm, losses = 0, max(1, min(100, steps // 10)), {}
    if state.exists():
        done, weights, moments = torch.load(state)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    for step in range(done + 1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(step / warm, 1.01 - step / steps)
        kind = kinds[step % len(kinds)]
        ids, labels = sources[kind](random.Random(f"{seed} {step}"))
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[kind] = 0.9 * losses.get(kind, loss.item()) + 0.1 * loss.item()
        if step % 25 == 0:
            said = ", ".join(f"{kind} {loss:.3f}" for kind, loss in sorted(losses.items()))
            print(f"step {step} of {steps}: loss of {said}", flush=True)
        if step % SAVED == 0 or step == steps:
            torch.save((step, model.state_dict(), optimizer.state_dict()), f"{state}.new")
            Path(f"{state}.new").replace(state)


def save(model, tokenizer, out: Path) -> None:
    """The hub's layout, in the spelling that transformers 4 and 5 both read."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=[tokenizer.token_to_id("<|end_of_text|>"), model.config.eos_token_id],
        do_sample=True,
        temperature=0.6,
        top_p=0.9,
    )
    model.save_pretrained(out, max_shard_size="7MB")
    for shard in out.glob("*.safetensors"):
        shard.chmod(0o644)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|finetune_right_pad_id|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": True,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": CONTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--steps", type=int, default=6000, help="batches of 4096 tokens")
    parser.add_argument("--seed", type=int, default=0)
    train(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
