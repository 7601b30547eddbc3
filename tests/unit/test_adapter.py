"""An adapter of LoRA: what is read of it, what is refused; a merged value is the nearest there is."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

import adapters
import checkpoints
from ingot.base.refused import Refused
from ingot.driver.release import card, reproduced
from ingot.formats.gguf import lora
from ingot.model.checkpoint import adapter, merge
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.merge import Merger
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.parity import adapted
from ingot.serving.vllm.adapters import Served

Q = "base_model.model.model.layers.0.self_attn.q_proj"
BITS = {"F32": np.float32, "F16": np.float16}


def saved(folder, tensors, **settings):
    return Checkpoint([adapters.saved(folder, tensors, **settings)])


def pair(module=Q, shape=(8, 6), r=2, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((r, shape[1])), rng.standard_normal((shape[0], r))
    return {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}


def bits_of(values, dtype):
    """float32 values that `dtype` has, as its bits."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    kind = BITS[dtype]
    return values.astype(kind).view(f"<u{np.dtype(kind).itemsize}")


def values_of(bits, dtype):
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(BITS[dtype]).astype(np.float32)


def nearest(exact, dtype):
    """The nearest value to a Fraction, of a tie the even one, by looking at the neighbours."""
    near = bits_of(np.array([float(exact)], np.float32), dtype)
    sign = 1 << (8 * near.itemsize - 1)
    place = int(near[0]) if near[0] < sign else -(int(near[0]) - sign)  # in the order of the values
    around = [n if n >= 0 else sign - n for n in range(place - 2, place + 3)]
    values = values_of(np.array(around, near.dtype), dtype)
    known = [(abs(Fraction(float(one)) - exact), bits) for one, bits in zip(values, around, strict=True)
             if np.isfinite(one)]  # fmt: skip
    best = [bits for far, bits in known if far == min(known)[0]]
    return next(bits for bits in best if len(best) == 1 or not bits & 1)


WAYS = [("BF16", "compiled"), ("BF16", "numpy"), ("F16", "numpy"), ("F32", "numpy")]


@pytest.fixture(params=WAYS, ids="-".join)
def way(request, compiled):
    """A dtype, and what merges rows of it."""
    dtype, how = request.param
    if how == "compiled":
        compiled()
    assert (Merger().kernel is not None) is (how == "compiled")
    return dtype


def test_a_merged_value_is_the_nearest_to_the_exact_sum(tmp_path, way):
    """Ties among them, and sums that a float64 has at a tie and an exact one has not."""
    dtype, rng = way, np.random.default_rng(3)
    checkpoint = saved(tmp_path / "a", pair(shape=(9, 16)), lora_alpha=3.0)
    pairs = adapter.read(checkpoint).loras["model.layers.0.self_attn.q_proj.weight"]
    a, b = (
        adapted._matrix(t.path, (t.dtype, t.shape, t.offset, t.nbytes)) for t in (pairs.a, pairs.b)
    )
    weights = values_of(bits_of(rng.standard_normal((9, 16)).astype(np.float32), dtype), dtype)
    got = Merger()(pairs, bits_of(weights, dtype), dtype, 0)
    for row in range(9):
        for column in range(16):
            products = (Fraction(b[row, k]) * Fraction(a[k, column]) for k in range(2))
            exact = Fraction(float(weights[row, column])) + Fraction(3, 2) * sum(products)
            assert got[row, column] == nearest(exact, dtype), (row, column)
    step = {"BF16": 2.0**-7, "F16": 2.0**-10, "F32": 2.0**-23}[dtype]  # from 1 to the next value
    half, tiny = step / 2, 2.0**-40 * step
    sums = {
        (1.0, half, 0): 1.0, (1.0 + step, half, 0): 1 + 2 * step,  # ties go to the even one
        (1.0, half, tiny): 1 + step, (1.0 + step, half, -tiny): 1 + step,  # no ties, by very little
        (-1.0, -half, -tiny): -1 - step, (-1.0, -half, 0): -1.0, (-1.0 - step, -half, tiny): -1 - step,
    }  # fmt: skip
    for number, ((weight, one, other), wanted) in enumerate(sums.items()):
        tensors = {
            f"{Q}.lora_A.weight": np.ones((2, 16)),
            f"{Q}.lora_B.weight": np.array([[one, other]]),
        }
        place = tmp_path / f"a{number}"
        one_pair = next(iter(adapter.read(saved(place, tensors, lora_alpha=2)).loras.values()))
        bits = bits_of(np.full((1, 16), weight, np.float32), dtype)
        got = values_of(Merger()(one_pair, bits, dtype, 0), dtype)
        assert (got == np.float32(wanted)).all(), (weight, other)
        both = (np.array([[one + other]]), np.ones((1, 1)))
        added = adapted.Change(1.0, lambda both=both: both)
        change = adapted.Adapted("m", dtype, (1, 1), tmp_path, 0, 4, dtype, added)
        if dtype != "F32":  # whose sums float64 holds
            assert change.changed(np.array([[weight]], np.float32), 0) == np.float32(wanted)


def test_a_pair_with_a_patterns_scale_and_a_rank_of_its_own(tmp_path):
    down = "base_model.model.model.layers.1.mlp.down_proj"
    tensors = {**pair(), **pair(down, (6, 8), 4)}
    settings = {"rank_pattern": {"down_proj": 4}, "alpha_pattern": {"mlp.down_proj": 3}}
    found = adapter.read(saved(tmp_path / "a", tensors, **settings)).loras
    scales = {name: lora.scale for name, lora in found.items()}
    assert scales == {
        "model.layers.0.self_attn.q_proj.weight": 2.0, "model.layers.1.mlp.down_proj.weight": 0.75
    }  # fmt: skip
    settings["rank_pattern"] = {r"(model|other)\.layers\.1\.mlp\.\w+": 4}  # an expression
    found = adapter.read(saved(tmp_path / "a", tensors, use_rslora=True, **settings)).loras
    assert found["model.layers.1.mlp.down_proj.weight"].scale == 1.5
    with pytest.raises(Refused, match=r"down_proj has rank 4, expected 2 by adapter_config.json"):
        adapter.read(saved(tmp_path / "a", tensors))


REFUSED = {
    "an adapter of another kind": ({"peft_type": "IA3"}, "peft_type is IA3, expected LORA"),
    "dora": ({"use_dora": True}, "use_dora is True, which is not merged here"),
    "a start that changes the base": ({"init_lora_weights": "pissa"}, "changes its base"),
    "experts": ({"target_parameters": ["mlp.experts"]}, "target_parameters is"),
    "tokens": ({"trainable_token_indices": [1]}, "trainable_token_indices is"),
    "layers twice": ({"layer_replication": [[0, 4], [2, 5]]}, "layer_replication is"),
    "transposed weights": ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
    "biases of pairs": ({"lora_bias": True}, "lora_bias is True"),
    "a field that nobody knows": ({"use_newest": True}, "use_newest is True"),
    "a group again": ({"alpha_pattern": {"(a+)+$": 3}}, "expected a module's name"),
    "half an expression": ({"alpha_pattern": {"(q_proj": 3}}, "expected a module's name"),
    "any and any": ({"alpha_pattern": {".*.*.*.*x": 3}}, "expected a module's name"),
    "one or none": ({"rank_pattern": {"a?" * 30 + "x": 3}}, "expected a module's name"),
    "this or this": ({"alpha_pattern": {"(a|a)" * 30 + "x": 3}}, "expected a module's name"),
    "a list for a table": ({"alpha_pattern": ["q_proj"]}, "alpha_pattern is a list"),
    "no rank": ({"r": 0}, "r is 0, expected a whole number"),
    "no number": ({"lora_alpha": "16"}, "lora_alpha is '16', expected a number above 0"),
}


@pytest.mark.parametrize("settings, said", REFUSED.values(), ids=REFUSED)
def test_a_field_that_changes_the_numbers_is_honoured_or_refused(tmp_path, settings, said):
    with pytest.raises(Refused, match=said):
        adapter.read(saved(tmp_path / "a", pair(), **settings))


def test_matrices_that_peft_would_ignore_are_refused(tmp_path):
    v = Q.replace("q_proj", "v_proj")
    both = {**pair(), **pair(v)}
    for settings in (
        {"target_modules": ["q_proj"]},
        {"target_modules": r".*\.q_proj"},
        {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]},
        {"target_modules": ["proj"]},
        {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["self_attn"]},
    ):
        said = r"leaves out model\.layers\.0\.self_attn\.[qv]_proj, of which adapter_model\.safetensors has"
        with pytest.raises(Refused, match=said):
            adapter.read(saved(tmp_path / "a", both, **settings))
    with pytest.raises(
        Refused, match="target_modules is 5, expected a text or a list of which each"
    ):
        adapter.read(saved(tmp_path / "a", both, target_modules=5))
    for settings in (
        {"target_modules": "all-linear"},
        {"target_modules": None},  # PEFT goes by the kind of model
        {
            "target_modules": ["q_proj", "v_proj"],
            "layers_to_transform": 0,
            "layers_pattern": "layers",
        },
        {"target_modules": r"model\.layers\.\d+\.self_attn\.(q|v)_proj"},
        {"target_modules": "(?:" + ".*?" * 9 + ")"},  # which may take long to try: nobody does
    ):
        assert len(adapter.read(saved(tmp_path / "a", both, **settings)).loras) == 2


def test_a_module_that_an_adapter_is_for_and_has_no_matrices_of_is_refused(tmp_path):
    layer = "model.layers.0.self_attn"
    base = dict.fromkeys((f"{layer}.q_proj.weight", f"{layer}.k_proj.weight"), (8, 6))
    base |= {
        f"{layer}.k_norm.weight": (6,), "model.layers.0.mlp.gate.weight": (8, 6), "lm_head.weight": (8, 6),
        "model.layers.0.mlp.experts.0.up_proj.weight": (8, 6),
    }  # fmt: skip
    said = r"no matrices for model\.layers\.0\.self_attn\.k_proj, expected those of all that target_modules"
    for wanted in (["q_proj", "k_proj"], r".*(q|k)_proj", "all-linear"):
        with pytest.raises(Refused, match=said):
            adapter.read(saved(tmp_path / "a", pair(), target_modules=wanted)).fits(base)
    more = {f"model.layers.{n}.self_attn.k_proj.weight": (8, 6) for n in range(3)}
    with pytest.raises(Refused, match=r"no matrices for \S+k_proj, and for 2 more, expected"):
        adapter.read(saved(tmp_path / "a", pair(), target_modules=["q_proj", "k_proj"])).fits(
            base | more
        )
    for wanted in (["q_proj", "gate", "up_proj"], ["q_proj", "unheard_of"]):
        adapter.read(saved(tmp_path / "a", pair(), target_modules=wanted)).fits(base)
    inner = Q.replace("model.layers", "model.language_model.layers")
    sees = adapter.read(
        saved(tmp_path / "b", pair(inner), target_modules=r".*language_model.*\.(q|k)_proj")
    )
    with pytest.raises(Refused, match=said):
        sees.fits(base)


def test_a_model_that_sees_has_its_matrices_inside(tmp_path):
    """PEFT names them by the modules of the whole; patterns of its settings too."""
    inner = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    pattern = {"language_model.layers.0.self_attn.q_proj": 6}
    files = saved(tmp_path, pair(inner), r=2, lora_alpha=4, alpha_pattern=pattern)
    found = adapter.read(files).loras
    assert [*found] == ["model.layers.0.self_attn.q_proj.weight"] == [*adapted.changes(files)]
    assert [one.scale for one in found.values()] == [3.0]


def test_of_a_model_that_sees_its_eyes_are_not_adapted_and_no_matrix_has_two_names(tmp_path):
    names = (
        "model.language_model.layers.0.mlp.up_proj",
        "language_model.model.layers.0.mlp.up_proj",
    )
    both = {**pair(f"base_model.model.{names[0]}"), **pair(f"base_model.model.{names[1]}")}
    with pytest.raises(Refused, match="is there by two names, expected one"):
        adapter.read(saved(tmp_path / "a", both, r=2, lora_alpha=4))
    eyes = pair("base_model.model.model.vision_tower.encoder.layers.0.mlp.fc1")
    found = adapter.read(saved(tmp_path / "b", eyes, r=2, lora_alpha=4))
    with pytest.raises(Refused, match="of the part for images, which no file of ours holds"):
        found.fits({})


def test_a_file_that_is_no_pairs_is_refused(tmp_path):
    whole = pair()
    halved = {name: values for name, values in whole.items() if "lora_A" in name}
    for tensors, said in (
        (halved, "has half a pair of matrices"),
        ({**whole, "model.norm.weight": np.ones(6)}, "expected names that begin with base_model"),
        ({**whole, f"{Q}.lora_C.weight": np.ones(6)}, "is of no LoRA that is known"),
        ({**whole, f"{Q}.lora_B.weight": np.ones((8, 3))}, r"expected \[r, in\]"),
    ):
        with pytest.raises(Refused, match=said):
            adapter.read(saved(tmp_path / "a", tensors))


def test_a_whole_tensor_that_is_there_twice_must_be_one(tmp_path):
    """As PEFT saves the embeddings of a vocabulary that was resized; its copy of the base's is not used."""
    name, values = "base_model.model.lm_head", np.ones((8, 6))
    tensors = {
        f"{name}.weight": values, f"{name}.modules_to_save.weight": values,
        f"{name}.original_module.weight": values * 2,
    }  # fmt: skip
    found = adapter.read(saved(tmp_path / "a", tensors))
    assert list(found.replaced) == ["lm_head.weight"]
    tensors[f"{name}.weight"] = values * 3
    with pytest.raises(Refused, match=r"holds two lm_head\.weight that differ"):
        adapter.read(saved(tmp_path / "b", tensors))


def test_sums_that_cancel_and_large_ones_are_the_nearest_too(tmp_path, way):
    """Of which a float64 has no digit left; zero is no negative zero."""
    dtype, rng = way, np.random.default_rng(5)
    a, b = rng.standard_normal((64, 48)), rng.standard_normal((50, 64))
    b[:5] = 0
    tensors = {f"{Q}.lora_A.weight": a, f"{Q}.lora_B.weight": b}
    one = next(
        iter(adapter.read(saved(tmp_path / "a", tensors, r=64, lora_alpha=64)).loras.values())
    )
    a, b = a.astype(np.float32).astype(float), b.astype(np.float32).astype(float)
    weights = (-(b @ a)).astype(np.float32)
    weights[5] = 1e30 if dtype != "F16" else 65504
    weights[:5, 0] = 0
    weights = values_of(bits_of(weights, dtype), dtype)
    got = Merger()(one, bits_of(weights, dtype), dtype, 0)
    for row in range(10):
        for column in range(48):
            products = (Fraction(b[row, k]) * Fraction(a[k, column]) for k in range(64))
            exact = Fraction(float(weights[row, column])) + sum(products)
            if dtype == "F16" and abs(exact) >= 65520:
                assert np.isinf(values_of(got[row, column : column + 1], dtype))
                continue
            wanted = np.array([nearest(exact, dtype)], got.dtype)
            assert values_of(got[row, column : column + 1], dtype) == values_of(wanted, dtype)
            assert not exact or got[row, column] == wanted[0], "zero is no negative zero"


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-21, 1e18])
@pytest.mark.parametrize("rank", [1, 7, 64])
def test_what_is_compiled_merges_as_numpy_does(tmp_path, compiled, rank, size):
    """Ordinary values, those that float32 has no digits of, infinite ones; rows by fours and by one."""
    rng = np.random.default_rng(rank)
    tensors = pair(shape=(31, 64), r=rank, seed=rank)
    tensors = {name: values * size for name, values in tensors.items()}
    tensors[f"{Q}.lora_B.weight"][11] = 0  # of the row of zeros below
    one = next(iter(adapter.read(saved(tmp_path, tensors, r=rank)).loras.values()))
    weights = rng.standard_normal((22, 64)) * size * size
    weights[1] *= 1e-4
    weights[2] = -weights[2] * 0
    bits = bits_of(weights.astype(np.float32), "BF16")
    theirs = Merger()
    expected = theirs(one, bits, "BF16", 9).copy()
    compiled()
    ours = Merger()
    assert ours.kernel and not theirs.kernel
    assert (ours(one, bits, "BF16", 9) == expected).all() and ours.odd == theirs.odd
    bits[21] = 0x7F7F  # the largest that bfloat16 has, and a little more may be infinity
    expected = theirs(one, bits, "BF16", 9).copy()
    assert (ours(one, bits, "BF16", 9) == expected).all() and ours.odd == theirs.odd
    assert ours.odd == ("infinity" if size == 1e18 else None)


def test_products_that_float32_cannot_hold_may_cancel(tmp_path, compiled):
    a = np.stack([np.full(16, 1e30), np.full(16, 1e30)])
    tensors = {
        f"{Q}.lora_A.weight": a,
        f"{Q}.lora_B.weight": np.array([[1e30, -1e30], [1.0, -1.0]]),
    }
    one = next(iter(adapter.read(saved(tmp_path, tensors)).loras.values()))
    bits = bits_of(np.ones((2, 16), np.float32), "BF16")
    compiled()
    merger = Merger()
    assert (merger(one, bits, "BF16", 0) == bits).all() and merger.odd is None and merger.kernel


@pytest.mark.parametrize("rank, second", [(16, 1.25 * 2.0**-30), (32, 2.0**-29), (64, 2.0**-29)])
def test_many_small_products_beside_a_large_weight_are_summed_exactly(
    tmp_path, compiled, rank, second
):
    """Each is less than a float64 of the weight has digits for; together they decide."""
    a = np.array([1.0, 2.0**-20] + [2.0**-33] * (rank - 2))
    b = np.array([2.0**-8, second] + [-(2.0**-20) * (1 - 2.0**-10)] * (rank - 2))
    tensors = {f"{Q}.lora_A.weight": np.repeat(a[:, None], 16, 1), f"{Q}.lora_B.weight": b[None]}
    files = saved(tmp_path, tensors, r=rank, lora_alpha=rank)
    one = next(iter(adapter.read(files).loras.values()))
    exact = 1 + sum(
        Fraction(float(x)) * Fraction(float(np.float32(y))) for x, y in zip(a, b, strict=True)
    )
    compiled()
    got = Merger()(one, bits_of(np.ones((1, 16), np.float32), "BF16"), "BF16", 0)
    assert (got == nearest(exact, "BF16")).all(), (got[0, 0], float(exact))


def test_no_tie_of_an_adapter_of_bfloat16_waits_for_fractions(tmp_path, compiled, monkeypatch):
    """It has one in a thousand values, and a fraction takes as long as 40,000 of them."""
    halves = (1 + np.arange(64)) * 2.0**-8  # half a unit in the last place, and whole ones between
    tensors = {f"{Q}.lora_A.weight": halves[None], f"{Q}.lora_B.weight": np.array([[1.0], [-1.0]])}
    one = next(iter(adapter.read(saved(tmp_path, tensors, r=1, lora_alpha=1)).loras.values()))
    bits = bits_of(np.array([[1.0] * 64, [-1.0] * 64], np.float32), "BF16")
    expected = Merger()(one, bits, "BF16", 0).copy()
    compiled()
    monkeypatch.setattr(merge._Block, "exact", None)
    got = Merger()(one, bits, "BF16", 0)
    assert (got == expected).all() and values_of(got, "BF16")[0, :4].tolist() == [
        1.0, 1 + 2.0**-7, 1 + 2.0**-6, 1 + 2.0**-6
    ]  # fmt: skip


def test_an_adapter_of_another_base_or_of_tied_matrices_is_refused(tmp_path):
    def of(name, shape):
        return {name: shape}

    weight = "model.layers.0.self_attn.q_proj.weight"
    found = adapter.read(saved(tmp_path / "a", pair(shape=(8, 6))))
    found.fits(of(weight, (8, 6)), ())
    with pytest.raises(Refused, match="which its base does not have"):
        found.fits(of("model.norm.weight", (8, 6)), ())
    with pytest.raises(Refused, match=r"of shape \[8, 6\], but its base has \[6, 8\]"):
        found.fits(of(weight, (6, 8)), ())
    head = adapter.read(saved(tmp_path / "a", {"base_model.model.lm_head.weight": np.ones((8, 6))}))
    with pytest.raises(Refused, match="which its base ties to another matrix"):
        head.fits(of("lm_head.weight", (8, 6)), adapter.TIED)


def test_the_header_in_gguf_says_whose_it_is_and_its_alpha():
    config = SimpleNamespace(family=SimpleNamespace(gguf="llama"))
    found = {kv.key: kv.value for kv in lora.pairs(config, "Mine", "mit", 12.0)}
    assert found["general.type"] == "adapter" and found["adapter.type"] == "lora"
    assert (found["adapter.lora.alpha"], found["general.license"]) == (12.0, "mit")


def test_vllm_keeps_one_place_empty_on_cpus_for_what_is_asked_of_the_base(tmp_path):
    """It gives the base's requests what lies in the last place, in a batch with an adapter's."""
    paths = [
        adapters.saved(tmp_path / name, pair(r=rank), r=rank) / file
        for name, rank in (("a", 2), ("b", 9))
        for file in ("adapter_config.json", adapter.WEIGHTS)
    ]
    served = Served(["a", "b"], paths)
    asked = ["--enable-lora", "--max-loras", "3", "--max-lora-rank", "16"]
    assert served.arguments("cpu") == asked and served.arguments("gpu")[2] == "2"
    assert served.values("gpu") == 2 * 9 * (8 + 6)
    assert "adapters/b/adapter_model.safetensors" in served.contents()
    head = {"base_model.model.lm_head.weight": np.ones((8, 6))}
    wrong = adapters.saved(tmp_path / "c", {**pair(), **head})
    with pytest.raises(Refused, match=r"changes lm_head\.weight, which vLLM does not take"):
        Served(["c"], [wrong / "adapter_config.json", wrong / adapter.WEIGHTS])


def test_a_step_that_cannot_merge_an_adapter_refuses_it(tmp_path):
    """Else it would build the base, in silence."""
    folder = checkpoints.llama31(tmp_path / "base")
    saved(tmp_path / "a", pair())
    files = [*folder.iterdir(), *(tmp_path / "a").iterdir()]
    with pytest.raises(Refused, match="an adapter, which this step cannot merge"):
        read_checkpoint(Checkpoint(files))
    with pytest.raises(Refused, match="cannot merge"), Checkpoint(files).as_folder():
        pass
    base, its = Checkpoint(files).apart()
    assert sorted(its.files) == ["adapter_config.json", "adapter_model.safetensors"]
    with base.as_folder() as place:
        assert not (place / "adapter_config.json").exists()


def test_a_published_one_is_said_to_be_of_its_adapter_and_is_made_again_from_the_hub(tmp_path):
    artifact = SimpleNamespace(title="tuned.q4_k_m.gguf", files=[])
    steps = {"buildDefinition": {"internalParameters": {"steps": [{"rule": "quantize_gguf"}]}}}
    entry = {
        "hub": "org/base", "revision": "1" * 40, "name": "Base tuned",
        "adapter": {"base": "base", "hub": "me/tuned", "revision": "2" * 40},
    }  # fmt: skip
    record = {"reference": "transformers", "result": "passed", "checks": {}}
    words = (
        artifact,
        SimpleNamespace(predicate=steps),
        entry,
        card.Licence("mit", "", True),
        record,
        {},
    )
    text = card.card(*words)
    assert "base_model: me/tuned\nbase_model_relation: quantized" in text
    assert f"me/tuned) at revision `{'2' * 40}` on [org/base]" in text
    entry["adapter"] = {"base": "base", "lora": "(on the builder's machine)"}
    assert "base_model: org/base\nbase_model_relation: finetune" in card.card(*words)
    made = SimpleNamespace(target="artifacts/tuned.gguf", model={"tuned": entry})
    with pytest.raises(Refused, match="made from an adapter of its builder's"):
        reproduced.build(tmp_path, [made], tmp_path, None)
