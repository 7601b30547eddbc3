"""IRPA, the parameter archive of IREE: artifacts/M[.f32|.f16|.bf16].irpa, and sets of one archive per rank."""


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


for tp in SIZES[1:]:

    rule:
        name:
            f"shard_irpa_tp{tp}"
        input:
            code=code("shard_irpa.py"),
            lock=lock("convert"),
            env=env("convert"),
            config=inputs.config_json,
            weights=inputs.weights,
        output:
            root=archives("{model}", tp)[0],
            ranks=archives("{model}", tp)[1:],
        log:
            f"logs/shard_irpa/{{model}}_tp{tp}.log",
        benchmark:
            f"logs/shard_irpa/{{model}}_tp{tp}.tsv"
        params:
            tp=tp,
            dtype=inputs.dtype,
            architecture=setting("architecture"),
        shell:
            """
            {PYTHON[convert]:q} {input.code[0]:q} \
                --checkpoint {input.config:q} {input.weights:q} \
                --dtype {params.dtype:q} \
                --architecture {params.architecture:q} \
                --tp {params.tp} \
                --root {output.root:q} \
                --ranks {output.ranks:q} \
                >{log:q}
            """


rule verify_irpa:
    input:
        code=code("verify_irpa.py"),
        lock=lock("iree"),
        env=env("iree"),
        gguf="artifacts/{model}{dtype}.gguf",
        gguf_record="artifacts/{model}{dtype}.gguf.verified.json",
        irpa="artifacts/{model}{dtype}.irpa",
    output:
        "artifacts/{model}{dtype}.irpa.verified.json",
    log:
        "logs/verify_irpa/{model}{dtype}.log",
    benchmark:
        "logs/verify_irpa/{model}{dtype}.tsv"
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --gguf {input.gguf:q} \
            --gguf-record {input.gguf_record:q} \
            --irpa {input.irpa:q} \
            --record {output:q} \
            >{log:q}
        """


for tp in SIZES[1:]:

    rule:
        name:
            f"verify_shards_tp{tp}"
        input:
            code=code("verify_shards.py"),
            lock=lock("iree"),
            env=env("iree"),
            reading="artifacts/{model}.reading.json",
            digests="artifacts/{model}.digests.json",
            root=archives("{model}", tp)[0],
            ranks=archives("{model}", tp)[1:],
        output:
            f"{archives('{model}', tp)[0]}.verified.json",
        log:
            f"logs/verify_shards/{{model}}_tp{tp}.log",
        benchmark:
            f"logs/verify_shards/{{model}}_tp{tp}.tsv"
        params:
            dtype=inputs.dtype,
        shell:
            """
            {PYTHON[iree]:q} {input.code[0]:q} \
                --digests {input.digests:q} \
                --reading {input.reading:q} \
                --dtype {params.dtype:q} \
                --root {input.root:q} \
                --ranks {input.ranks:q} \
                --record {output:q} \
                >{log:q}
            """
