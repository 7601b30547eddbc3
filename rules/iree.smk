"""config.json to program: artifacts/M_tpN.mlir and .config.json, artifacts/M_tpN[.HW].vmfb.

A program depends on shapes and flags, never on a weight.
"""


rule export_mlir:
    input:
        code=code("export_mlir.py"),
        lock=lock("iree"),
        env=env("iree"),
        config=inputs.config_json,
    output:
        mlir="artifacts/{model}_tp{tp}{program}.mlir",
        config="artifacts/{model}_tp{tp}{program}.config.json",
    log:
        "logs/export_mlir/{model}_tp{tp}{program}.log",
    benchmark:
        "logs/export_mlir/{model}_tp{tp}{program}.tsv"
    params:
        dtype=inputs.dtype,
        architecture=setting("architecture"),
        flags=programs.export_flags,
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
        mlir=programs.mlir,
    output:
        "artifacts/{model}_tp{tp}{hw}.vmfb",
    log:
        "logs/compile_vmfb/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/compile_vmfb/{model}_tp{tp}{hw}.tsv"
    params:
        flags=programs.compile_flags,
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
        config=programs.config,
        parameters=inputs.parameters,
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}_tp{tp}{hw}.vmfb.verified.json",
    log:
        "logs/verify_vmfb/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/verify_vmfb/{model}_tp{tp}{hw}.tsv"
    params:
        device=inputs.device,
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --vmfb {input.vmfb:q} \
            --config {input.config:q} \
            --parameters {input.parameters:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --device {params.device:q} \
            --record {output:q} \
            >{log:q}
        """
