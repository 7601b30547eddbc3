"""OpenVINO: artifacts/M[.int8|.int4].openvino, the IR of a decoder with its tokenizer, for Intel's CPUs.

optimum-intel writes int4, and what our own decoder graph cannot express.
"""


rule export_openvino:
    input:
        code=code("export_openvino.py"),
        lock=lock("openvino"),
        env=env("openvino"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
    output:
        directory("artifacts/{model}{int8}.openvino"),
    log:
        "logs/export_openvino/{model}{int8}.log",
    benchmark:
        "logs/export_openvino/{model}{int8}.tsv"
    wildcard_constraints:
        model=OWN["openvino"],
    params:
        architecture=setting("architecture"),
        export=inputs.openvino_options,
    shell:
        """
        {PYTHON[openvino]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.export:q} \
            --openvino {output:q} \
            >{log:q}
        """


rule verify_openvino:
    input:
        code=code("verify_openvino.py"),
        lock=lock("openvino"),
        env=env("openvino"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
        openvino="artifacts/{model}{int8}.openvino",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}{int8}.openvino.verified.json",
    log:
        "logs/verify_openvino/{model}{int8}.log",
    benchmark:
        "logs/verify_openvino/{model}{int8}.tsv"
    wildcard_constraints:
        model=OWN["openvino"],
    params:
        architecture=setting("architecture"),
        export=inputs.openvino_options,
        limits=inputs.limits("int8", "f32"),
    shell:
        """
        {PYTHON[openvino]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.export:q} \
            --openvino {input.openvino:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """


rule build_openvino:
    input:
        code=code("build_openvino.py"),
        lock=lock("optimum-intel"),
        env=env("optimum-intel"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
    output:
        directory("artifacts/{model}{openvino}.openvino"),
    log:
        "logs/build_openvino/{model}{openvino}.log",
    benchmark:
        "logs/build_openvino/{model}{openvino}.tsv"
    wildcard_constraints:
        model=BY_EXPORTER,
    params:
        weights=inputs.openvino_weights,
    shell:
        """
        {PYTHON[optimum-intel]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --weights {params.weights:q} \
            --openvino {output:q} \
            >{log:q}
        """


rule verify_built_openvino:
    input:
        code=code("verify_built_openvino.py"),
        lock=lock("openvino"),
        env=env("openvino"),
        openvino="artifacts/{model}{openvino}.openvino",
        reading="artifacts/{model}.reading.json",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}{openvino}.openvino.verified.json",
    log:
        "logs/verify_built_openvino/{model}{openvino}.log",
    benchmark:
        "logs/verify_built_openvino/{model}{openvino}.tsv"
    wildcard_constraints:
        model=BY_EXPORTER,
    params:
        weights=inputs.openvino_weights,
        limits=inputs.limits("openvino", "f32"),
    shell:
        """
        {PYTHON[openvino]:q} {input.code[0]:q} \
            --openvino {input.openvino:q} \
            --weights {params.weights:q} \
            --reading {input.reading:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """
