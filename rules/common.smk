"""What all rules share.  There are none here; their Python is scripts/ingot/driver/catalogue/rules/.

Ingot decides itself what runs: `hook.install` replaces Snakemake's own decision, which goes by
times, with one by content.  `snakemake -n` says of each job why; `ingot explain TARGET` says which field.
"""

import os
import sys
from pathlib import Path

ROOT = Path(str(workflow.current_basedir)).parent
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.driver.snakemake import hook
from ingot.driver.catalogue import schema, site, targets
from ingot.driver.toolchains import toolchains
from ingot.driver.catalogue.formats import gguf, iree, onnx, quantised, tensorrt
from ingot.driver.catalogue.formats.iree import archives
from ingot.driver.catalogue.formats.table import SIZES
from ingot.driver.catalogue.model import MAKERS
from ingot.driver.catalogue.rules import environment
from ingot.driver.catalogue.rules.engines import Engines
from ingot.driver.catalogue.rules.inputs import Inputs
from ingot.driver.catalogue.rules.programs import Programs
from ingot.formats.gguf import quantisations
from ingot.model.checkpoint.quantised.schemes import ALL, CALIBRATED, SCHEMES
from ingot.base.refused import one_line

with one_line("error: "):
    site.apply()
    schema.complete(config, ROOT)
    targets.stop_on_wrong(sys.argv, config)
    hook.install(config, ROOT)

environment.prepare(ROOT / "scripts", head=workflow.is_main_process)
shell.prefix(environment.PREFIX)


# With its dot, or empty: the model's own.
wildcard_constraints:
    model=targets.MODEL,
    tp=r"\d+",
    dtype=targets.optional(gguf.FLOATS),
    gguf=targets.optional((*gguf.FLOATS, *quantisations.ROWS)),
    hw=targets.optional(config["hardware"]),
    program=targets.optional(iree.PROGRAMS),
    float=targets.optional(tensorrt.FLOATS),
    onnx=targets.optional(onnx.VARIANTS),
    int8=targets.optional(onnx.QUANTS),
    openvino=targets.optional(onnx.EXPORTED),
    scheme="|".join(ALL),
    bits=targets.optional(quantised.BITS),
    served=targets.optional(ALL),
    quant=targets.optional(tensorrt.QUANTS),
    gpu=targets.optional(config["gpus"]),


inputs = Inputs(config, ROOT, decides=workflow.is_main_process)
programs = Programs(inputs)
engines = Engines(inputs, talks=workflow.is_main_process)
code, lock, setting = inputs.code, inputs.lock, inputs.setting
# of a format the models whose files Ingot writes, and those of the tool of its makers
OWN, UPSTREAM = (
    {line: inputs.made_by(way, line) for line in MAKERS} for way in ("own", "upstream")
)
TABLED = inputs.with_table()
# schemes that read a text, and all of the other families
BY_LLMCOMPRESSOR = rf"(?!(?:{TABLED})\.)[^/]+?|(?:{TABLED})(?=\.(?:{'|'.join(CALIBRATED)})\.)"
# of OpenVINO optimum-intel writes int4 of every model
BY_EXPORTER = rf"{UPSTREAM['openvino']}|(?:{OWN['openvino']})(?=\.int4\.openvino)"

# The interpreter of each toolchain.  Named in shell blocks, never in params: a path that differs
# between machines must not affect what is rebuilt.
PYTHON = {name: toolchains.python(ROOT, name) for name in toolchains.names(ROOT)}


def env(name):
    """A built toolchain: no part of the key, since its lock is."""
    return ancient(inputs.mark(name))
