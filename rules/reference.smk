"""What verifications compare with: artifacts/M.reference.npz, M.texts.json and M.scores.npy."""


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


rule encode_texts:
    input:
        code=code("encode_texts.py"),
        lock=lock("iree"),
        env=env("iree"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
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
        {PYTHON[iree]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} \
            --corpus {input.corpus:q} \
            --tokens {params.tokens} \
            --texts {output:q} \
            >{log:q}
        """


rule score_corpus:
    input:
        code=code("score_corpus.py"),
        lock=lock("iree"),
        env=env("iree"),
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
        {PYTHON[iree]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --texts {input.texts:q} \
            --scores {output:q} \
            >{log:q}
        """
