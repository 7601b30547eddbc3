"""What the rules of IREE's programs ask: flags of the exporter and of the compiler."""

import math

from ingot.driver.catalogue.formats.iree import PROGRAM_DTYPES, PROGRAMS, computed_in
from ingot.driver.catalogue.rules.inputs import Inputs


class Programs:
    def __init__(self, inputs: Inputs):
        self.inputs = inputs

    def export_flags(self, wildcards) -> list[str]:
        """The catalogue's `iree` settings in the words of sharktank's exporter."""
        settings = self.inputs.model(wildcards)["iree"]
        listed = {name: ",".join(map(str, settings[name])) for name in ("bs_prefill", "bs_decode")}
        plain = ("block_seq_stride", "device_block_count")
        words = {**listed, **{name: settings[name] for name in (*plain, "attention_kernel")}}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in words.items()]
        program, dtype = wildcards.program.lstrip("."), self.inputs.dtype(wildcards)
        if dtype != "f16" and program != "f32":
            flags += computed_in(PROGRAM_DTYPES[dtype])
        return flags + PROGRAMS.get(program, []) + settings["export_flags"]

    def compile_flags(self, wildcards) -> list[str]:
        """Each device, the flags of the hardware, then the model's own."""
        table, tp = self.inputs.hardware(wildcards), int(wildcards.tp)
        devices = [table["target"]] if tp == 1 else [f"{table['target']}[{n}]" for n in range(tp)]
        flags = [f"--iree-hal-target-device={device}" for device in devices] + table["flags"]
        settings = self.inputs.model(wildcards)["iree"]
        if tp > 1:
            flags += table["multi_device_flags"]
        elif max(settings["bs_prefill"]) <= table.get("single_device_batch", math.inf):
            flags += table["single_device_flags"]
        return flags + settings["compile_flags"]

    def mlir(self, wildcards) -> str:
        """The program that the hardware needs."""
        program = self.inputs.hardware(wildcards).get("program")
        return f"artifacts/{{model}}_tp{{tp}}{'.' + program if program else ''}.mlir"

    def config(self, wildcards) -> str:
        """The server's config of that program."""
        return self.mlir(wildcards).removesuffix(".mlir") + ".config.json"
