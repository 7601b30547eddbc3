"""What verifications compare with: artifacts/M.reference.npz."""


rule generate_reference:
    input:
        code=code("generate_reference.py"),
        lock=lock("iree"),
        env=env("iree"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        prompts=inputs.prompts,
    output:
        "artifacts/{model}.reference.npz",
    log:
        "logs/generate_reference/{model}.log",
    benchmark:
        "logs/generate_reference/{model}.tsv"
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --prompts {input.prompts:q} \
            --reference {output:q} \
            >{log:q}
        """
