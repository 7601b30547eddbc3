"""config.json to program: artifacts/M_tpN.mlir and .config.json, artifacts/M_tpN[.HW].vmfb.

A program depends on shapes and flags, never on a weight.
"""


def export_flags(wildcards):
    """The catalogue's `iree` settings in the words of sharktank's exporter."""
    settings = model(wildcards)["iree"]
    listed = {name: ",".join(map(str, settings[name])) for name in ("bs_prefill", "bs_decode")}
    plain = ("block_seq_stride", "device_block_count", "attention_kernel")
    words = {**listed, **{name: settings[name] for name in plain}}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in words.items()]
    return flags + settings["export_flags"]


def compile_flags(wildcards):
    """The flags of the hardware, then the model's own."""
    table = config["hardware"][hardware(wildcards)]
    return table["flags"] + model(wildcards)["iree"]["compile_flags"]


rule export_mlir:
    input:
        code=code("export_mlir.py"),
        lock=lock("iree"),
        env=env("iree"),
        config=config_json,
    output:
        mlir="artifacts/{model}_tp{tp}.mlir",
        config="artifacts/{model}_tp{tp}.config.json",
    log:
        "logs/export_mlir/{model}_tp{tp}.log",
    benchmark:
        "logs/export_mlir/{model}_tp{tp}.tsv"
    params:
        dtype=dtype,
        architecture=setting("architecture"),
        flags=export_flags,
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --config {input.config:q} \
            --dtype {params.dtype:q} \
            --architecture {params.architecture:q} \
            --mlir {output.mlir:q} \
            --server-config {output.config:q} \
            -- {params.flags:q} \
            >{log:q}
        """


rule compile_vmfb:
    input:
        code=code("compile_vmfb.py"),
        lock=lock("iree"),
        env=env("iree"),
        mlir="artifacts/{model}_tp{tp}.mlir",
    output:
        "artifacts/{model}_tp{tp}{hw}.vmfb",
    log:
        "logs/compile_vmfb/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/compile_vmfb/{model}_tp{tp}{hw}.tsv"
    params:
        flags=compile_flags,
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --mlir {input.mlir:q} \
            --vmfb {output:q} \
            -- {params.flags:q} \
            >{log:q}
        """
