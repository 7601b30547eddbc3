"""Fetch a checkpoint from the Hugging Face hub: artifacts/M.hf/<file>, each checked by its hash.

A file is named by its hub id and commit, and its bytes by the hub's hash: nothing else makes it come
again, not our code either.
"""


rule fetch_listing:
    input:
        code=ancient(code("fetch_listing.py")),
        lock=ancient(lock("hub")),
        env=env("hub"),
    output:
        "artifacts/{model}.hf/listing.json",
    log:
        "logs/fetch_listing/{model}.log",
    params:
        hub=inputs.fetched("hub"),
        revision=inputs.fetched("revision"),
        gated=inputs.fetched("gated"),
        volatile=inputs.unpinned,  # not cached: which commit is meant is the hub's to say
    shell:
        """
        HF_TOKEN=$token {PYTHON[hub]:q} {input.code[0]:q} \
            --model {wildcards.model:q} \
            --hub {params.hub:q} \
            --revision={params.revision:q} \
            --gated={params.gated} \
            --revisions models.lock.json \
            --listing {output:q} \
            >{log:q}
        """


rule fetch_file:
    input:
        code=ancient(code("fetch_file.py")),
        lock=ancient(lock("hub")),
        env=env("hub"),
        listing="artifacts/{model}.hf/listing.json",
    output:
        "artifacts/{model}.hf/{file}",
    log:
        "logs/fetch_file/{model}/{file}.log",
    benchmark:
        "logs/fetch_file/{model}/{file}.tsv"
    wildcard_constraints:
        file=r"(?!listing\.json$)(additional_chat_templates/)?[^/]+",
    shell:
        """
        HF_TOKEN=$token {PYTHON[hub]:q} {input.code[0]:q} \
            --listing {input.listing:q} \
            --name {wildcards.file:q} \
            --file {output:q} \
            >{log:q}
        """
