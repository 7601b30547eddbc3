"""GGUF to IRPA, the parameter archive of IREE: artifacts/M[.f32|.f16|.bf16].irpa."""


rule gguf_to_irpa:
    input:
        code=code("gguf_to_irpa.py"),
        lock=lock("convert"),
        env=env("convert"),
        gguf="artifacts/{model}{dtype}.gguf",
    output:
        "artifacts/{model}{dtype}.irpa",
    log:
        "logs/gguf_to_irpa/{model}{dtype}.log",
    benchmark:
        "logs/gguf_to_irpa/{model}{dtype}.tsv"
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --gguf {input.gguf:q} \
            --irpa {output:q} \
            >{log:q}
        """
