"""vLLM's own parser and configuration take what a plan says, without weights, and refuse what we refuse."""

import json
import subprocess

import pytest

import checkpoints
from ingot.base.refused import Refused
from ingot.model.checkpoint.quantised.schemes import SCHEMES
from ingot.model.config import read_config
from ingot.serving.vllm import arguments
from ingot.serving.vllm import plan as plan_of

ASK = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
names = [word for action in parser._actions for word in action.option_strings if word.startswith("--")]
found = {"names": names, "configs": [], "quantised": []}
for words in json.loads(sys.argv[1]):
    given = parser.parse_args(words)
    validate_parsed_serve_args(given)
    engine = AsyncEngineArgs.from_cli_args(given)
    engine.model, engine.skip_tokenizer_init, engine.load_format = words[0], True, "dummy"
    config = engine.create_engine_config()
    parallel = config.parallel_config
    found["configs"].append([
        parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.nnodes,
        config.model_config.get_num_kv_heads(parallel), config.model_config.max_model_len,
    ])
    quantised = config.model_config.quantization
    if quantised:
        found["quantised"].append([quantised, [*config.quant_config.target_scheme_map]])
print("FOUND" + json.dumps(found))
"""
SHAPES = (("llama70b", 4), ("llama405b", 8), ("llama405b", 4))


def test_vllm_takes_every_argument_of_the_guides_models(python, tmp_path):
    asked = []
    for name, tp in SHAPES:
        folder = tmp_path / f"{name}{tp}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(checkpoints.public_config(name)))
        settings = {"device": "sm90", "memory": 80, "arguments": ["--enable-prefix-caching"]}
        plan = plan_of.planned(read_config(folder / "config.json"), settings, tp, "bfloat16", name)
        nodes = ["--nnodes", str(plan.nodes), "--node-rank", "0", "--master-addr", "127.0.0.1"]
        words = plan_of.arguments(plan, name, settings)
        asked.append([str(folder), *words, *(nodes if plan.nodes > 1 else [])])
    for scheme in SCHEMES:
        folder = tmp_path / scheme
        folder.mkdir()
        said = checkpoints.public_config("llama405b")
        path = folder / "config.json"
        path.write_text(json.dumps(said))
        plan = plan_of.planned(read_config(path), settings, 8, "bfloat16", scheme, scheme=scheme)
        path.write_text(
            json.dumps({**said, "quantization_config": SCHEMES[scheme].config(["lm_head"])})
        )
        assert plan.nodes == 1
        asked.append([str(folder), *plan_of.arguments(plan, scheme, settings)])
    done = subprocess.run(
        [python("vllm"), "-c", ASK, json.dumps(asked)],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.partition("FOUND")[2].splitlines()[0])
    whole, quantised = found["configs"][:3], found["configs"][3:]
    assert whole == [[4, 1, 1, 2, 131_072], [8, 2, 2, 1, 131_072], [4, 4, 4, 2, 131_072]]
    assert quantised == [[8, 1, 1, 1, 131_072]] * len(SCHEMES)
    assert found["quantised"] == [["compressed-tensors", ["Linear"]]] * len(SCHEMES)
    assert {arguments.name_of(word) for word in found["names"]} - {"help"} == arguments.KNOWN - {
        "help"
    }


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--tensor-paralel-size", "expected an argument of vllm serve"),
        ("--enable-reasoning", "expected an argument of vllm serve"),
        ("--api-key=secret", "expected none that the plan sets"),
        ("--port", "expected none that the plan sets"),
    ],
)
def test_what_it_would_refuse_later_is_refused_now(word, said):
    with pytest.raises(Refused, match=said):
        arguments.stop_on_wrong([word, "8"], "models.m.vllm.arguments")
