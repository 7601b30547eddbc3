"""Checkpoint to GGUF: artifacts/M[.DTYPE].gguf, M.quants of several types at once, M[.DTYPE].split.

Each model goes one way: by Ingot's own writer, or by llama.cpp's converter where there is no table of its family.
"""


rule safetensors_to_gguf:
    input:
        code=code("safetensors_to_gguf.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
    output:
        "artifacts/{model}{dtype}.gguf",
    log:
        "logs/safetensors_to_gguf/{model}{dtype}.log",
    benchmark:
        "logs/safetensors_to_gguf/{model}{dtype}.tsv"
    wildcard_constraints:
        model=OWN["gguf"],
    params:
        dtype=inputs.dtype,
        name=setting("name"),
        pre_tokenizer=setting("pre_tokenizer"),
        license=setting("license"),
        architecture=setting("architecture"),
        allow_overflow=inputs.allow_overflow,
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --gguf {output:q} \
            --dtype {params.dtype:q} \
            --name {params.name:q} \
            --pre-tokenizer {params.pre_tokenizer:q} \
            --license={params.license:q} \
            --architecture {params.architecture:q} \
            {params.allow_overflow} \
            >{log:q}
        """


rule compute_imatrix:
    input:
        code=code("compute_imatrix.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        gguf="artifacts/{model}.gguf",
        text=inputs.imatrix_text,
    output:
        "artifacts/{model}.imatrix",
    log:
        "logs/compute_imatrix/{model}.log",
    benchmark:
        "logs/compute_imatrix/{model}.tsv"
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --gguf {input.gguf:q} \
            --text {input.text:q} \
            --imatrix {output:q} \
            >{log:q}
        """


rule quantize_gguf:
    input:
        code=code("quantize_gguf.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        imatrix=inputs.imatrix,
    output:
        "artifacts/{model}.{quant}.gguf",
    log:
        "logs/quantize_gguf/{model}.{quant}.log",
    benchmark:
        "logs/quantize_gguf/{model}.{quant}.tsv"
    wildcard_constraints:
        model=OWN["gguf"],
        quant="|".join(quantisations.ROWS),
    params:
        name=setting("name"),
        pre_tokenizer=setting("pre_tokenizer"),
        license=setting("license"),
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --quant {wildcards.quant:q} \
            --gguf {output:q} \
            --imatrix {input.imatrix:q} \
            --name {params.name:q} \
            --pre-tokenizer {params.pre_tokenizer:q} \
            --license={params.license:q} \
            --architecture {params.architecture:q} \
            >{log:q}
        """


rule quantize_all:
    input:
        code=code("quantize_gguf.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        imatrix=inputs.imatrix,
    output:
        directory("artifacts/{model}.quants"),
    log:
        "logs/quantize_all/{model}.log",
    benchmark:
        "logs/quantize_all/{model}.tsv"
    wildcard_constraints:
        model=OWN["gguf"],
    params:
        quants=setting("quants"),
        each="quantize_gguf",  # of one type each: its files are on record as theirs too
        name=setting("name"),
        pre_tokenizer=setting("pre_tokenizer"),
        license=setting("license"),
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --quant {params.quants:q} \
            --folder {output:q} \
            --stem {wildcards.model:q} \
            --imatrix {input.imatrix:q} \
            --name {params.name:q} \
            --pre-tokenizer {params.pre_tokenizer:q} \
            --license={params.license:q} \
            --architecture {params.architecture:q} \
            >{log:q}
        """


rule split_gguf:
    input:
        code=code("split_gguf.py"),
        lock=lock("convert"),
        env=env("convert"),
        gguf="artifacts/{model}{gguf}.gguf",
    output:
        directory("artifacts/{model}{gguf}.split"),
    log:
        "logs/split_gguf/{model}{gguf}.log",
    benchmark:
        "logs/split_gguf/{model}{gguf}.tsv"
    params:
        limit=setting("split"),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --gguf {input.gguf:q} \
            --folder {output:q} \
            --stem {wildcards.model}{wildcards.gguf} \
            --limit {params.limit:q} \
            >{log:q}
        """


rule verify_split:
    input:
        code=code("verify_split.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        gguf="artifacts/{model}{gguf}.gguf",
        split="artifacts/{model}{gguf}.split",
        reference="artifacts/{model}.reference.npz",
    output:
        "artifacts/{model}{gguf}.split.verified.json",
    log:
        "logs/verify_split/{model}{gguf}.log",
    benchmark:
        "logs/verify_split/{model}{gguf}.tsv"
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --gguf {input.gguf:q} \
            --split {input.split:q} \
            --reference {input.reference:q} \
            --record {output:q} \
            >{log:q}
        """


rule verify_gguf:
    input:
        code=code("verify_gguf.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        gguf="artifacts/{model}{gguf}.gguf",
        imatrix=inputs.imatrix_of_record,
        reading="artifacts/{model}.reading.json",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}{gguf}.gguf.verified.json",
    log:
        "logs/verify_gguf/{model}{gguf}.log",
    benchmark:
        "logs/verify_gguf/{model}{gguf}.tsv"
    wildcard_constraints:
        model=OWN["gguf"],
    params:
        dtype=inputs.gguf_type,
        limits=inputs.limits("gguf"),
        name=setting("name"),
        pre_tokenizer=setting("pre_tokenizer"),
        license=setting("license"),
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --dtype {params.dtype:q} \
            --name {params.name:q} \
            --pre-tokenizer {params.pre_tokenizer:q} \
            --license={params.license:q} \
            --gguf {input.gguf:q} \
            --imatrix {input.imatrix:q} \
            --reading {input.reading:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """


rule convert_gguf:
    input:
        code=code("convert_gguf.py"),
        lock=lock("llamacpp-hf") + lock("llamacpp"),
        env=env("llamacpp-hf"),
        converter=env("llamacpp"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
    output:
        "artifacts/{model}{dtype}.gguf",
    log:
        "logs/convert_gguf/{model}{dtype}.log",
    benchmark:
        "logs/convert_gguf/{model}{dtype}.tsv"
    wildcard_constraints:
        model=UPSTREAM["gguf"],
    params:
        dtype=inputs.dtype,
        name=setting("name"),
        pre_tokenizer=setting("pre_tokenizer"),
        license=setting("license"),
    shell:
        """
        {PYTHON[llamacpp-hf]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --converter "$(dirname {PYTHON[llamacpp]:q})/../llama.cpp" \
            --gguf {output:q} \
            --dtype {params.dtype:q} \
            --name {params.name:q} \
            --pre-tokenizer={params.pre_tokenizer:q} \
            --license={params.license:q} \
            >{log:q}
        """


rule quantize_float:
    input:
        code=code("quantize_float.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        gguf="artifacts/{model}.f32.gguf",
    output:
        "artifacts/{model}.{quant}.gguf",
    log:
        "logs/quantize_float/{model}.{quant}.log",
    benchmark:
        "logs/quantize_float/{model}.{quant}.tsv"
    wildcard_constraints:
        model=UPSTREAM["gguf"],
        quant="|".join(quantisations.ROWS),
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --source {input.gguf:q} \
            --quant {wildcards.quant:q} \
            --gguf {output:q} \
            >{log:q}
        """


rule quantize_floats:
    input:
        code=code("quantize_float.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        gguf="artifacts/{model}.f32.gguf",
    output:
        directory("artifacts/{model}.quants"),
    log:
        "logs/quantize_floats/{model}.log",
    benchmark:
        "logs/quantize_floats/{model}.tsv"
    wildcard_constraints:
        model=UPSTREAM["gguf"],
    params:
        quants=setting("quants"),
        each="quantize_float",
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --source {input.gguf:q} \
            --quant {params.quants:q} \
            --folder {output:q} \
            --stem {wildcards.model:q} \
            >{log:q}
        """


rule verify_converted:
    input:
        code=code("verify_converted.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        gguf="artifacts/{model}{gguf}.gguf",
        floats=inputs.floats_of_record,
        reading="artifacts/{model}.reading.json",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}{gguf}.gguf.verified.json",
    log:
        "logs/verify_converted/{model}{gguf}.log",
    benchmark:
        "logs/verify_converted/{model}{gguf}.tsv"
    wildcard_constraints:
        model=UPSTREAM["gguf"],
    params:
        dtype=inputs.gguf_type,
        limits=inputs.limits("gguf"),
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --gguf {input.gguf:q} \
            --dtype {params.dtype:q} \
            --floats {input.floats:q} \
            --reading {input.reading:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """


rule convert_mmproj:
    input:
        code=code("convert_gguf.py"),
        lock=lock("llamacpp-hf") + lock("llamacpp"),
        env=env("llamacpp-hf"),
        converter=env("llamacpp"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
    output:
        "artifacts/{model}.mmproj.gguf",
    log:
        "logs/convert_mmproj/{model}.log",
    benchmark:
        "logs/convert_mmproj/{model}.tsv"
    params:
        name=setting("name"),
        license=setting("license"),
    shell:
        """
        {PYTHON[llamacpp-hf]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --converter "$(dirname {PYTHON[llamacpp]:q})/../llama.cpp" \
            --gguf {output:q} \
            --dtype f16 \
            --name {params.name:q} \
            --license={params.license:q} \
            --mmproj \
            >{log:q}
        """


rule see_images:
    input:
        code=code("see_images.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        mmproj="artifacts/{model}.mmproj.gguf",
        gguf="artifacts/{model}.f32.gguf",
    output:
        "artifacts/{model}.seen.npz",
    log:
        "logs/see_images/{model}.log",
    benchmark:
        "logs/see_images/{model}.tsv"
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --mmproj {input.mmproj:q} \
            --gguf {input.gguf:q} \
            --seen {output:q} \
            >{log:q}
        """


rule verify_mmproj:
    input:
        code=code("verify_mmproj.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        mmproj="artifacts/{model}.mmproj.gguf",
        seen="artifacts/{model}.seen.npz",
    output:
        "artifacts/{model}.mmproj.gguf.verified.json",
    log:
        "logs/verify_mmproj/{model}.log",
    benchmark:
        "logs/verify_mmproj/{model}.tsv"
    params:
        limits=inputs.limits(empty="mmproj"),
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --mmproj {input.mmproj:q} \
            --seen {input.seen:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """


rule lora_to_gguf:
    input:
        code=code("lora_to_gguf.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=inputs.config_json,
        lora=inputs.lora,
    output:
        "artifacts/{model}.lora.gguf",
    log:
        "logs/lora_to_gguf/{model}.log",
    benchmark:
        "logs/lora_to_gguf/{model}.tsv"
    wildcard_constraints:
        model=OWN["gguf"],
    params:
        name=setting("name"),
        license=setting("license"),
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.lora:q} \
            --lora {output:q} \
            --name {params.name:q} \
            --license={params.license:q} \
            --architecture {params.architecture:q} \
            >{log:q}
        """


rule verify_lora:
    input:
        code=code("verify_lora.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        config=inputs.config_json,
        adapter=inputs.lora,
        lora="artifacts/{model}.lora.gguf",
        gguf=inputs.gguf_of_base,
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}.lora.gguf.verified.json",
    log:
        "logs/verify_lora/{model}.log",
    benchmark:
        "logs/verify_lora/{model}.tsv"
    wildcard_constraints:
        model=OWN["gguf"],
    params:
        dtype=setting("dtype"),
        limits=inputs.limits(),
        name=setting("name"),
        license=setting("license"),
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.adapter:q} \
            --lora {input.lora:q} \
            --gguf {input.gguf:q} \
            --dtype {params.dtype} \
            --name {params.name:q} \
            --license={params.license:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """
