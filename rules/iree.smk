"""config.json to program: artifacts/M_tpN.mlir and .config.json, artifacts/M_tpN[.HW].vmfb.

A program depends on shapes and flags, never on a weight.
"""


def export_flags(wildcards):
    """The catalogue's `iree` settings in the words of sharktank's exporter."""
    settings = model(wildcards)["iree"]
    listed = {name: ",".join(map(str, settings[name])) for name in ("bs_prefill", "bs_decode")}
    plain = ("block_seq_stride", "device_block_count")
    words = {**listed, **{name: settings[name] for name in plain}}
    words["attention_kernel"] = wildcards.kernel.lstrip(".") or settings["attention_kernel"]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in words.items()]
    return flags + settings["export_flags"]


def compile_flags(wildcards):
    """Each device, the flags of the hardware, then the model's own."""
    table, tp = config["hardware"][hardware(wildcards)], int(wildcards.tp)
    devices = [table["target"]] if tp == 1 else [f"{table['target']}[{n}]" for n in range(tp)]
    flags = [f"--iree-hal-target-device={device}" for device in devices] + table["flags"]
    return flags + (table["several"] if tp > 1 else []) + model(wildcards)["iree"]["compile_flags"]


def program(wildcards):
    """The program exported with the attention kernel that the hardware needs."""
    kernel = config["hardware"][hardware(wildcards)].get("kernel")
    return f"artifacts/{{model}}_tp{{tp}}{'.' + kernel if kernel else ''}.mlir"


rule export_mlir:
    input:
        code=code("export_mlir.py"),
        lock=lock("iree"),
        env=env("iree"),
        config=config_json,
    output:
        mlir="artifacts/{model}_tp{tp}{kernel}.mlir",
        config="artifacts/{model}_tp{tp}{kernel}.config.json",
    log:
        "logs/export_mlir/{model}_tp{tp}{kernel}.log",
    benchmark:
        "logs/export_mlir/{model}_tp{tp}{kernel}.tsv"
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
            --tp {wildcards.tp} \
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
        mlir=program,
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


rule verify_vmfb:
    input:
        code=code("verify_vmfb.py"),
        lock=lock("iree"),
        env=env("iree"),
        vmfb="artifacts/{model}_tp{tp}{hw}.vmfb",
        config="artifacts/{model}_tp{tp}.config.json",
        parameters=parameters,
        reference="artifacts/{model}.reference.npz",
    output:
        "artifacts/{model}_tp{tp}{hw}.vmfb.verified.json",
    log:
        "logs/verify_vmfb/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/verify_vmfb/{model}_tp{tp}{hw}.tsv"
    params:
        device=device,
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --vmfb {input.vmfb:q} \
            --config {input.config:q} \
            --parameters {input.parameters:q} \
            --reference {input.reference:q} \
            --device {params.device:q} \
            --record {output:q} \
            >{log:q}
        """
