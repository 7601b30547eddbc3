"""What verifications compare with: artifacts/M.reading.json, .reference.npz, .texts.json, .scores.npy, .digests.json."""


rule read_config:
    input:
        code=code("read_config.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        config=inputs.config_json,
    output:
        "artifacts/{model}.reading.json",
    log:
        "logs/read_config/{model}.log",
    benchmark:
        "logs/read_config/{model}.tsv"
    params:
        way=setting("way"),
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --config {input.config:q} \
            --reading {output:q} \
            --way {params.way} \
            >{log:q}
        """


rule generate_reference:
    input:
        code=code("generate_reference.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        prompts=inputs.prompts,
        reading="artifacts/{model}.reading.json",
    output:
        "artifacts/{model}.reference.npz",
    log:
        "logs/generate_reference/{model}.log",
    benchmark:
        "logs/generate_reference/{model}.tsv"
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --reading {input.reading:q} \
            --prompts {input.prompts:q} \
            --reference {output:q} \
            >{log:q}
        """


rule encode_texts:
    input:
        code=code("encode_texts.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        reading="artifacts/{model}.reading.json",
        corpus=inputs.corpus,
    output:
        "artifacts/{model}.texts.json",
    log:
        "logs/encode_texts/{model}.log",
    benchmark:
        "logs/encode_texts/{model}.tsv"
    params:
        tokens=setting("corpus_tokens"),
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} \
            --reading {input.reading:q} \
            --corpus {input.corpus:q} \
            --tokens {params.tokens} \
            --texts {output:q} \
            >{log:q}
        """


rule score_corpus:
    input:
        code=code("score_corpus.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        config=inputs.config_json,
        weights=inputs.weights,
        texts="artifacts/{model}.texts.json",
    output:
        "artifacts/{model}.scores.npy",
    log:
        "logs/score_corpus/{model}.log",
    benchmark:
        "logs/score_corpus/{model}.tsv"
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --texts {input.texts:q} \
            --scores {output:q} \
            >{log:q}
        """


rule digest_weights:
    input:
        code=code("digest_weights.py"),
        lock=lock("convert"),
        env=env("convert"),
        weights=inputs.weights,
    output:
        "artifacts/{model}{dtype}.digests.json",
    log:
        "logs/digest_weights/{model}{dtype}.log",
    benchmark:
        "logs/digest_weights/{model}{dtype}.tsv"
    params:
        dtype=inputs.dtype,
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.weights:q} \
            --dtype {params.dtype:q} \
            --digests {output:q} \
            >{log:q}
        """
