"""Checkpoints for MLX: artifacts/M.mlx, M.4bit.mlx, M.8bit.mlx."""


rule quantize_mlx:
    input:
        code=code("quantize_mlx.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
    output:
        directory("artifacts/{model}{bits}.mlx"),
    log:
        "logs/quantize_mlx/{model}{bits}.log",
    benchmark:
        "logs/quantize_mlx/{model}{bits}.tsv"
    wildcard_constraints:
        model=TABLED,
    params:
        architecture=setting("architecture"),
        bits=inputs.mlx_bits,
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            --bits {params.bits} \
            --mlx {output:q} \
            >{log:q}
        """


rule verify_mlx:
    input:
        code=code("verify_mlx.py"),
        lock=lock("mlx"),
        env=env("mlx"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
        mlx="artifacts/{model}{bits}.mlx",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}{bits}.mlx.verified.json",
    log:
        "logs/verify_mlx/{model}{bits}.log",
    benchmark:
        "logs/verify_mlx/{model}{bits}.tsv"
    wildcard_constraints:
        model=TABLED,
    params:
        bits=inputs.mlx_bits,
        limits=inputs.limits("bits", "f32"),
    shell:
        """
        {PYTHON[mlx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --tokenizer {input.tokenizer:q} \
            --bits {params.bits} \
            --mlx {input.mlx:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """
