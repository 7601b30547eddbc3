"""A model that Ingot has no table of: what is known of it, which way it goes, what may be asked of it."""

import json
import re
from dataclasses import dataclass, replace

import pytest
import yaml

import checkpoints
import families
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import found as found_of
from ingot.driver.catalogue import own_file, schema, targets
from ingot.driver.catalogue.formats import rows
from ingot.driver.catalogue.job import Job, Output
from ingot.driver.catalogue.model import MAKERS, Model, maker_of, shard_names
from ingot.driver.catalogue.rules.inputs import Inputs
from ingot.driver.commands import add
from ingot.formats.gguf import converter, pre_tokenizers
from ingot.model import gpu_layout, outline
from ingot.model.families.table import FAMILIES
from ingot.model.gpu_layout import Shape
from ingot.serving.vllm import plan as plan_of
from ingot.serving.vllm.kv_cache import KvCache

SIZES = {
    "vocab_size": 1088,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
}
OLMO = {"architectures": ["OlmoForCausalLM"], "model_type": "olmo", **SIZES}


@dataclass
class Wildcards:
    model: str


@pytest.fixture
def config(tmp_path):
    def run(**said):
        checkpoints.write_json(tmp_path / "config.json", said)
        return tmp_path / "config.json"

    return run


@pytest.fixture
def catalogue(tmp_path, monkeypatch):
    """catalogue(way="own") has a model m of an OLMo's config.json, here."""
    monkeypatch.chdir(tmp_path)

    def run(said=OLMO, **entry):
        (tmp_path / "m").mkdir(exist_ok=True)
        checkpoints.write_json(tmp_path / "m/config.json", said)
        (tmp_path / "m/model.safetensors").write_bytes(b"x" * 4000)
        found = schema.read(ROOT / schema.FILE)
        named = {"path": "m", "name": "M", "architecture": said["architectures"][0]}
        found["models"] = {"m": {**named, **entry}}
        schema.complete(found, ROOT)
        return found

    return run


def test_the_outline_is_read_whatever_a_family_calls_its_numbers(config):
    wanted = outline.Outline("OlmoForCausalLM", 1088, 128, 4, 512, 4)
    assert outline.read_outline(config(**OLMO)) == wanted
    nested = {"architectures": ["OlmoForCausalLM"], "text_config": SIZES, "vision_config": {}}
    assert outline.read_outline(config(**nested)) == wanted
    old = {"vocab_size": 1088, "n_embd": 128, "n_layer": 4, "n_positions": 512, "n_head": 4}
    assert outline.read_outline(config(architectures=["OlmoForCausalLM"], **old)) == wanted
    endless = {key: value for key, value in OLMO.items() if key != "max_position_embeddings"}
    assert outline.read_outline(config(**endless)).context == outline.ENDLESS
    deep = {"architectures": ["Q"], "thinker_config": {"text_config": SIZES, "hidden_size": 7}}
    assert outline.read_outline(config(**deep)).hidden == 128
    assert outline.said_by(config(architectures=["Q"], num_attention_heads=8))[1] == {"heads": 8}


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"vocab_size": -1}, "vocab_size is -1, expected a whole number from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected a whole number"),
        ({"hidden_size": "128"}, "hidden_size is 128, expected a whole number"),
        ({"architectures": []}, "architectures is empty"),
        ({"architectures": "Qwen3"}, "architectures is 'Qwen3', expected a list"),
        ({"text_config": []}, "text_config is a list, expected an object"),
    ],
)
def test_an_outline_that_makes_no_sense_is_refused_in_one_line(changes, said, config):
    with pytest.raises(Refused, match=said):
        outline.read_outline(config(**{**OLMO, **changes}))


def test_a_family_without_a_table_goes_the_upstream_way_to_what_upstream_writes(catalogue):
    found = catalogue()
    entry = found["models"]["m"]
    assert (entry["way"], entry["needs"]) == ("upstream", ["no_table"])
    legal = {*targets.legal_of("m", found)}
    assert {"artifacts/m.gguf", "artifacts/m.q4_k_m.gguf", "artifacts/m.quants"} <= legal
    formats = {name.rpartition(".")[2] for name in legal}
    served = {"vllm-slurm", "rayserve"}
    assert formats == {"gguf", "quants", "split", "onnx", "openvino", "safetensors", *served}
    assert "no table of, which .rtx cannot" in targets.why_not("artifacts/m.rtx", found)
    assert "the builder writes float32" in targets.why_not("artifacts/m.int8.onnx", found)
    assert {"artifacts/m.int8.openvino", "artifacts/m.int4.openvino"} <= legal
    llama = catalogue(checkpoints.llama_config(rope_scaling=None), pre_tokenizer="llama-bpe")
    for name in ("m.int4.openvino", "m.int8.openvino"):
        assert targets.why_not(f"artifacts/{name}", llama) is None
    inputs = Inputs(found, ROOT)
    for line in MAKERS:
        assert (inputs.made_by("upstream", line), inputs.made_by("own", line)) == ("m", "(?!)")
    assert inputs.with_table() == "(?!)"


def test_an_importance_matrix_is_refused_where_it_would_lack_experts(catalogue):
    found = catalogue(imatrix="corpus.txt")
    for name in ("m.imatrix", "m.q4_k_m.gguf", "m.quants"):
        reason = targets.why_not(f"artifacts/{name}", found)
        assert "no table of, which .imatrix" in reason or "it would lack experts" in reason
    assert "none of with way upstream" in targets.why_not("artifacts/m.iq2_xs.gguf", catalogue())


def test_a_model_may_be_told_to_go_the_upstream_way(catalogue):
    llama = checkpoints.llama_config(rope_scaling=None)
    plain, forced = (
        catalogue(llama, pre_tokenizer="llama-bpe", **more) for more in ({}, {"way": "upstream"})
    )
    assert [one["models"]["m"]["way"] for one in (plain, forced)] == ["own", "upstream"]
    own, upstream = ({*targets.legal_of("m", one)} for one in (plain, forced))
    assert own == upstream
    # what our reader refuses may be right by the other's
    odd = {**llama, "hidden_act": "gelu"}
    assert "hidden_act is gelu" in targets.why_not(
        "artifacts/m.gguf", catalogue(odd, pre_tokenizer="llama-bpe")
    )
    other = catalogue(odd, way="upstream")
    assert other["models"]["m"]["needs"] == ["no_table"]
    assert targets.why_not("artifacts/m.gguf", other) is None


@pytest.mark.parametrize(
    "entry, said",
    [
        ({"way": "own"}, "models.m.way: own, but Ingot has no table of OlmoForCausalLM"),
        ({"way": "theirs"}, "models.m.way: 'theirs' is not one of"),
        ({"architecture": "a b"}, "models.m.architecture: 'a b', expected a class of"),
    ],
)
def test_a_way_that_there_is_not_is_refused(entry, said, catalogue):
    with pytest.raises(Refused, match=said):
        catalogue(**entry)


def test_our_own_way_needs_a_pre_tokenizer_that_we_can_say(catalogue):
    llama = checkpoints.llama_config(rope_scaling=None)
    for entry, said in (({}, "missing"), ({"pre_tokenizer": "bloom"}, "bloom")):
        with pytest.raises(
            Refused, match=rf"models.m.pre_tokenizer: {said}, expected one of llama-bpe"
        ):
            catalogue(llama, **entry)


def test_a_config_json_of_another_architecture_is_refused(catalogue):
    found = catalogue(architecture="Glm4ForCausalLM")
    reason = targets.why_not("artifacts/m.gguf", found)
    assert "architectures is OlmoForCausalLM, expected Glm4ForCausalLM by the" in reason


def test_what_nobody_knows_is_refused_before_anything_is_fetched(catalogue, tmp_path):
    found = catalogue({**OLMO, "architectures": ["NobodysForCausalLM"]})
    assert "does not know NobodysForCausalLM" in targets.why_not("artifacts/m.gguf", found)
    with pytest.raises(Refused, match=f"or one of the {len(converter.ARCHITECTURES)} that"):
        found_of.numbers(tmp_path / "m/config.json", "m")


def test_plans_go_by_bytes_where_there_is_no_table(catalogue):
    model = Model("m", catalogue(), ROOT)
    assert model.config is None and model.numbers.vocab == 1088
    assert model.parameters() == 2000
    assert model.tensor_bytes("f32") == 4 * 62 * 32 and model.tensor_bytes("q8_0") == 62 * 34
    said = {"layers": 2, "hidden": 8, "vocab": 9, "context": 64, "parameters": 5000}
    unfetched = {"hub": "a/b", "shards": 1, "name": "M", "architecture": "OlmoForCausalLM"}
    found = schema.read(ROOT / schema.FILE)
    found["models"] = {"m": {**unfetched, "dimensions": said}}
    schema.complete(found, ROOT)
    assert Model("m", found, ROOT).parameters() == 5000
    more = {"ffn": 8, "heads": 2, "kv_heads": 1, "head_dim": 4}  # of a family that has a table
    found["models"]["m"]["dimensions"] |= more
    assert Model("m", found, ROOT).numbers.heads == 2


def test_what_config_json_leaves_to_transformers_is_no_contradiction(catalogue):
    """As Mistral 3, which may name neither its vocabulary nor its context."""
    inner = {"hidden_size": 128, "num_hidden_layers": 4}
    said = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": inner}
    sizes = {"layers": 4, "hidden": 128, "vocab": 262208, "context": 131072}
    found = Model("m", catalogue(said, dimensions=sizes), ROOT)
    assert found.numbers.vocab == 262208 and not found.refusal


def test_add_writes_what_is_known_and_says_who_writes_its_files(catalogue, tmp_path, capsys):
    catalogue()
    checkpoints.tokenizer_of_demo(tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    checkpoints.write_shard(tmp_path / "m/model.safetensors", {"a": ("BF16", (4,), b"12345678")})
    entry, size = add.of_folder(tmp_path / "m", "M")
    assert (entry["architecture"], entry["pre_tokenizer"]) == ("OlmoForCausalLM", "llama-bpe")
    assert {*entry["dimensions"]} == {*outline.KEYS}
    assert entry["tp"] == [1, 2, 4]
    text = own_file.yaml_of("m", entry)
    found = schema.read(ROOT / schema.FILE)
    found["models"] = yaml.safe_load(f"models:\n{text}")["models"]
    schema.complete(found, ROOT)
    lines = add.about(ROOT, "m", entry, size, found)
    assert any("no table of OlmoForCausalLM: its GGUF files are written by" in one for one in lines)
    (many,) = [one for one in lines if one.startswith("cannot: ") and "no table of" in one]
    assert "irpa, mlir" in many and "torchpipe" in many and not re.search("onnx|openvino", many)
    found["models"]["m"]["architecture"] = "BambaForCausalLM"  # that GGUF's tool alone knows
    (said,) = [one for one in add.about(ROOT, "m", entry, size, found) if "written by" in one]
    assert "by llama.cpp's converter; their records say" in said


@pytest.mark.parametrize(
    "template, said",
    [
        (
            "{% if x %}\n{{ x }\n{% endif %}",
            ": chat template, line 2: unexpected '}'; verifications",
        ),
        (
            "{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% break %}{% endfor %}",
            "",
        ),
        ([{"name": "tool_use", "template": "{% if %}"}], ": chat template tool_use, line 1: "),
    ],
)
def test_add_says_of_a_chat_template_that_cannot_be_parsed_where(
    template, said, catalogue, tmp_path, capsys
):
    catalogue()
    checkpoints.tokenizer_of_demo(tmp_path / "m", chat_template=template)
    (tmp_path / "m/model.safetensors").unlink()
    checkpoints.write_shard(tmp_path / "m/model.safetensors", {"a": ("BF16", (4,), b"12345678")})
    add.of_folder(tmp_path / "m", "M")
    lines = [line for line in capsys.readouterr().err.splitlines() if "chat template" in line]
    assert len(lines) == bool(said) and all(said in line for line in lines)


def test_a_llama_that_splits_as_another_family_goes_the_upstream_way(catalogue, tmp_path):
    llama = checkpoints.llama31(tmp_path / "llama")
    tokenizer = json.loads((llama / "tokenizer.json").read_bytes())
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pre_tokenizers.OTHERS[
        "ufakzeka"
    ][0]
    (llama / "tokenizer.json").write_text(json.dumps(tokenizer))
    entry, size = add.of_folder(llama, "M")
    assert (entry["pre_tokenizer"], entry["way"]) == ("ufakzeka", "upstream")
    found = catalogue(json.loads((llama / "config.json").read_bytes()), way="upstream")
    lines = add.about(ROOT, "m", entry, size, found)
    assert any("Ingot has no pre-tokenizer ufakzeka of its own: its GGUF" in one for one in lines)


def test_a_quantised_checkpoint_without_a_table_is_taken_as_it_is(catalogue, tmp_path):
    """As gpt-oss is, whose experts are bytes; of a Llama the same is refused by each format's step."""
    for said, pre in ((OLMO, None), (checkpoints.llama_config(), "llama-bpe")):
        catalogue(said, **({"pre_tokenizer": pre} if pre else {}))
        checkpoints.tokenizer_of_demo(tmp_path / "m")
        tensors = {"a": ("U8", (4,), b"1234"), "b": ("F8_E8M0", (2,), b"12")}
        checkpoints.write_shard(tmp_path / "m/model.safetensors", tensors)
        if pre:
            with pytest.raises(Refused, match="dtype U8, expected one of BF16, F16, F32"):
                add.of_folder(tmp_path / "m", "M")
        else:
            assert add.of_folder(tmp_path / "m", "M")[0]["architecture"] == "OlmoForCausalLM"


@pytest.mark.parametrize("name, changes, reason", [
    ("Qwen3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config is"),
    ("Qwen3-MoE", {"norm_topk_prob": False}, "norm_topk_prob is False"),
    ("SmolLM3", {"no_rope_layers": [1, 0, 1, 0, 1]}, "no_rope_layers says others"),
    ("Granite", {"head_dim": 64}, "head_dim is 64"),
    ("Gemma 3", {"query_pre_attn_scalar": 99}, "query_pre_attn_scalar is 99"),
])  # fmt: skip
def test_what_no_table_of_ours_says_of_a_known_family_is_left_to_upstream(
    name, changes, reason, catalogue, tmp_path, capsys
):
    said = checkpoints.llama_config(**families.SHAPES[name] | changes)
    catalogue(said, way="upstream")
    checkpoints.tokenizer_of_demo(tmp_path / "m")
    tensors = {"a": ("F8_E4M3", (4,), b"1234")} if "quantization_config" in changes else {}
    checkpoints.write_shard(
        tmp_path / "m/model.safetensors", tensors or {"a": ("BF16", (2,), b"1234")}
    )
    entry, _ = add.of_folder(tmp_path / "m", "M")
    assert entry["way"] == "upstream" and entry["architecture"] == said["architectures"][0]
    assert f"{reason}" in (told := capsys.readouterr().err)
    assert told.endswith("; so upstream tools write its files\n")


def test_an_entry_of_before_its_family_had_a_table_goes_on_as_it_did(catalogue):
    """As `ingot add` wrote it then: what an outline says, and that there is no table."""
    said = checkpoints.llama_config(**families.SHAPES["Mixtral"])
    sizes = {"layers": 3, "hidden": 256, "vocab": 1056, "context": 512, "heads": 8, "parameters": 9}
    old = {"dimensions": sizes, "needs": ["no_table"]}
    here = catalogue(said, **old)["models"]["m"]
    assert (here["way"], here["needs"], maker_of(here, "gguf")) == (
        "upstream",
        ["experts"],
        "upstream",
    )
    unfetched = {"hub": "a/b", "shards": 1, "name": "M", "architecture": "MixtralForCausalLM"}
    found = schema.read(ROOT / schema.FILE)
    found["models"] = {"m": {**unfetched, **old}}
    schema.complete(found, ROOT)
    assert targets.why_not("artifacts/m.q4_k_m.gguf", found) is None
    assert Inputs(found, ROOT).made_by("upstream", "gguf") == "m"
    for counted in (
        {},
        {"parameters": 9},
    ):  # no numbers of an outline: it is ours, and lacks its own
        plain = {"tp": [1], "pre_tokenizer": "llama-bpe", "dimensions": counted}
        found["models"] = {"m": {**unfetched, **plain}}
        with pytest.raises(
            Refused, match=r"^models\.m\.dimensions\.\w+: missing, expected a whole"
        ):
            schema.complete(found, ROOT)


def test_a_format_goes_the_way_that_can_express_the_model(catalogue):
    for name, ways in (
        ("Qwen3-MoE", ("own", "upstream", "upstream")), ("Granite", ("own", "own", "own")),
        ("Qwen3, YaRN", ("own", "upstream", "upstream")),
    ):  # fmt: skip
        found = catalogue(checkpoints.llama_config(**families.SHAPES[name]), pre_tokenizer="qwen2")
        entry = found["models"]["m"]
        assert tuple(maker_of(entry, line) for line in ("gguf", "onnx", "openvino")) == ways
        inputs = Inputs(found, ROOT)
        assert inputs.made_by("own", "gguf") == "m" and inputs.with_table() == "m"
    told = {"m.onnx": None, "m.fp16.onnx": "yarn, which .onnx cannot", "m.int4.openvino": None}
    for target, reason in told.items():
        said = targets.why_not(f"artifacts/{target}", found)
        assert said is reason is None or reason in said
    moe = catalogue(checkpoints.llama_config(**families.SHAPES["Qwen3-MoE"]), pre_tokenizer="qwen2",
                    imatrix="corpus.txt")  # fmt: skip
    for target in ("m.imatrix", "m.q4_k_m.gguf"):
        assert "experts" in targets.why_not(f"artifacts/{target}", moe)
    assert targets.why_not("artifacts/m.f16.gguf", moe) is None


@pytest.mark.parametrize(
    "count",
    [
        "model-{n:05d}-of-00002.safetensors",
        "model-{n:05d}-of-000003.safetensors",
        "model.safetensors-{n:05d}-of-00003.safetensors",
    ],
)
def test_shards_that_are_counted_otherwise_are_named(count, catalogue, tmp_path):
    first = count.endswith("2.safetensors")
    names = [count.format(n=n + (not first)) for n in range(3)]
    assert all(map(found_of.is_weights, names))
    found = found_of.shards("m", [*names, "model.safetensors.index.json", "config.json"])
    numbers = "{00000..00002}" if first else "{00001..00003}"
    assert found == [count.replace("{n:05d}", numbers)]
    entry = {"hub": "a/b", "shards": found, "name": "M", "architecture": "OlmoForCausalLM"}
    whole = schema.read(ROOT / schema.FILE)
    whole["models"] = {"m": entry}
    schema.complete(whole, ROOT)
    weights = Inputs(whole, ROOT).weights(Wildcards("m"))
    whole["models"]["m"]["dimensions"] = {"parameters": 10, "bytes": 30_000}
    one = Job("fetch_file", outputs=(Output("", weights[0]),), wildcards={"file": names[0]})
    assert rows.STEPS["fetch_file"](one, Model("m", whole, ROOT)).download == 10_000, "each a third"
    assert weights == [
        f"artifacts/m.hf/{name}" for name in (*names, "model.safetensors.index.json")
    ]


def test_a_range_of_shards_that_counts_down_is_refused():
    with pytest.raises(Refused, match=r"counts down, expected \{FIRST..LAST\}"):
        shard_names(["model-{00003..00001}-of-00003.safetensors"])


def test_a_set_of_shards_with_one_missing_is_refused():
    names = [f"model-0000{n}-of-00004.safetensors" for n in (1, 2, 4)]
    with pytest.raises(Refused, match=r"no model-00003-of-00004.safetensors among its files"):
        found_of.shards("m", [*names, "model.safetensors.index.json"])


def test_weights_are_counted_where_config_json_says_what_each_takes(config):
    for said, counted in (
        ({"dtype": "bfloat16"}, {"parameters": 4}),
        ({"torch_dtype": "float32"}, {"parameters": 2}),
        ({"dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}, {}),
        ({}, {}),
    ):
        assert found_of.counted(config(**OLMO, **said), 8) == counted


SHAPE = Shape(
    context=512, layers=4, heads=8, kv_heads=2, head_dim=32, cached=4, latent=0, weights=8000
)


@pytest.mark.parametrize(
    "changes, tp, per_token",
    [
        ({}, 1, 2 * 2 * 32 * 4 * 2),
        ({}, 2, 2 * 1 * 32 * 4 * 2),
        ({}, 8, 2 * 1 * 32 * 4 * 2),  # each head on four ranks
        ({"cached": 1}, 1, 2 * 2 * 32 * 2),  # the others keep states
        ({"latent": 576}, 4, 576 * 4 * 2),  # joined: whole on each rank
        ({"cached": 0}, 1, 0),
    ],
)
def test_a_token_takes_what_attention_keeps_of_it(changes, tp, per_token):
    found = gpu_layout.of_shape(replace(SHAPE, **changes), tp, 1, 80 << 30, 512)
    assert (found.kv_per_token, found.weights, found.fits) == (per_token, 8000 // tp, True)


def test_a_shape_that_does_not_divide_is_refused():
    for tp, pp, said in ((3, 1, "8 attention heads"), (1, 5, "4 layers")):
        assert said in gpu_layout.of_shape(SHAPE, tp, pp, 80 << 30, 512).wrong
    wide = replace(SHAPE, heads=12, kv_heads=3)
    assert "3 KV heads" in gpu_layout.of_shape(wide, 2, 1, 80 << 30, 512).wrong
    assert not gpu_layout.of_shape(replace(wide, latent=8), 2, 1, 80 << 30, 512).wrong


@pytest.mark.parametrize(
    "kinds, held, length, tokens",
    [  # as vLLM 0.32.0 said them of tiny checkpoints of 4 layers, 64 tokens computed at once
        ({"layers": 4, "layer_bytes": 1024}, 64 << 20, 500, 16_000),  # Phi-3
        ({"layers": 4, "layer_bytes": 512}, 64 << 20, 500, 32_000),  # Qwen3-MoE
        ({"layers": 4, "layer_bytes": 512, "sliding": 2, "window": 16}, 64 << 20, 500, 42_666),  # gpt-oss
        ({"layers": 4, "layer_bytes": 512, "sliding": 4, "window": 16}, 64 << 20, 500, 64_000),  # Gemma 3
        ({"layers": 4, "layer_bytes": 1024, "sliding": 2, "window": 16}, 64 << 20, 500, 21_333),  # Exaone 4
        ({"layers": 4, "layer_bytes": 2304, "block": 16}, 64 << 20, 500, 7_109),  # DeepSeek V3
        ({"layers": 2, "layer_bytes": 512, "states": 2}, 64 << 20, 500, 42_666),  # Qwen3-Next
    ],
)  # fmt: skip
def test_the_cache_holds_as_many_tokens_as_vllm_says(kinds, held, length, tokens):
    cache = KvCache(**{"sliding": 0, "window": 0, "block": 128, "at_once": 64, **kinds})
    assert cache.tokens(held, length) == tokens
    longest = cache.longest(cache.bytes(length))
    assert cache.bytes(longest) <= cache.bytes(length) and longest >= length


def test_a_model_that_slides_is_told_how_much_to_compute_at_once():
    shape = replace(SHAPE, sliding=2, window=16)
    settings = {"arguments": [], "memory": 80}
    plan = plan_of.planned(shape, settings, 1, "bfloat16", "models.m.vllm")
    words = plan_of.arguments(plan, "m", settings)
    assert words[words.index("--max-num-batched-tokens") + 1] == "8192"
    own = {**settings, "arguments": ["--max-num-batched-tokens=4096"]}
    plan = plan_of.planned(shape, own, 1, "bfloat16", "models.m.vllm")
    assert plan.cache.at_once == 2 * 4096
    assert "8192" not in plan_of.arguments(plan, "m", own)


def test_latent_attention_has_blocks_that_its_kernels_take():
    for memory, size in ((80, 64), (0, 16)):
        settings = {"arguments": [], "memory": memory}
        plan = plan_of.planned(replace(SHAPE, latent=576), settings, 1, "bfloat16", "models.m.vllm")
        words = plan_of.arguments(plan, "m", settings)
        assert words[words.index("--block-size") + 1] == str(size)


def test_what_vllm_does_not_serve_is_refused_as_a_bundle_alone(catalogue):
    found = catalogue({**OLMO, "architectures": ["T5ForConditionalGeneration"]})
    assert targets.why_not("artifacts/m.gguf", found) is None
    said = "vLLM, as it is pinned, does not serve T5ForConditionalGeneration"
    assert targets.why_not("artifacts/m_tp1.vllm-slurm", found) == said


def test_the_part_for_images_is_a_target_of_models_that_have_one(catalogue):
    found = catalogue({**OLMO, "architectures": ["Mistral3ForConditionalGeneration"]})
    for name in ("m.mmproj.gguf", "m.mmproj.gguf.verified.json", "m.q4_k_m.gguf"):
        assert targets.why_not(f"artifacts/{name}", found) is None
    said = "unknown variant q4_0, expected m.mmproj.gguf alone"
    assert targets.why_not("artifacts/m.q4_0.mmproj.gguf", found) == said
    said = "OlmoForCausalLM has no part for images or sounds that llama.cpp's converter writes"
    assert targets.why_not("artifacts/m.mmproj.gguf", catalogue(OLMO)) == said


def test_no_family_of_ours_is_left_to_the_converter():
    assert {*FAMILIES} <= converter.ARCHITECTURES
