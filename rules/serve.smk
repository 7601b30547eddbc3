"""Serving bundles, complete in themselves: artifacts/M_tpN.vllm-slurm, M_tpN.rayserve, M_tpN.kuberay.

M_tpN.fp8.vllm-slurm and its like serve a quantised checkpoint.
"""


rule bundle_vllm:
    input:
        code=code("bundle_vllm.py"),
        lock=lock("vllm"),
        pins=inputs.vllm_pins,
        parts=inputs.runtime("vllm"),
        config=inputs.config_json,
        weights=inputs.served_weights,
        tokenizer=inputs.served_tokenizer,
        quantised=inputs.quantised,
        reference=inputs.smoke_reference,
        reading=inputs.served_reading,
        adapters=inputs.served_adapters,
        adapter_references=inputs.adapter_references,
    output:
        directory("artifacts/{model}_tp{tp}{served}.vllm-slurm"),
    log:
        "logs/bundle_vllm/{model}_tp{tp}{served}.log",
    benchmark:
        "logs/bundle_vllm/{model}_tp{tp}{served}.tsv"
    params:
        settings=inputs.vllm,
    shell:
        """
        {sys.executable:q} {input.code[0]:q} \
            --model {wildcards.model} \
            --tp {wildcards.tp} \
            --settings {params.settings:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --tokenizer {input.tokenizer:q} \
            --parts {input.parts:q} \
            --lock {input.pins:q} \
            --reference {input.reference:q} \
            --reading {input.reading:q} \
            --quantised {input.quantised:q} \
            --adapters {input.adapters:q} \
            --adapter-references {input.adapter_references:q} \
            --bundle {output:q} \
            >{log:q}
        """


rule verify_vllm:
    input:
        code=code("verify_vllm.py"),
        lock=lock("vllm"),
        env=env("vllm"),
        pins=inputs.vllm_pins,
        parts=inputs.runtime("vllm"),
        config=inputs.config_json,
        weights=inputs.served_weights,
        tokenizer=inputs.served_tokenizer,
        quantised=inputs.quantised,
        reference="artifacts/{model}{served}.reference.npz",
        reading=inputs.served_reading,
        adapters=inputs.served_adapters,
        adapter_references=inputs.adapter_references,
        texts="artifacts/{model}.texts.json",
        bundle="artifacts/{model}_tp{tp}{served}.vllm-slurm",
    output:
        "artifacts/{model}_tp{tp}{served}.vllm-slurm.verified.json",
    log:
        "logs/verify_vllm/{model}_tp{tp}{served}.log",
    benchmark:
        "logs/verify_vllm/{model}_tp{tp}{served}.tsv"
    params:
        settings=inputs.vllm,
    shell:
        """
        {PYTHON[vllm]:q} {input.code[0]:q} \
            --model {wildcards.model} \
            --tp {wildcards.tp} \
            --settings {params.settings:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --tokenizer {input.tokenizer:q} \
            --parts {input.parts:q} \
            --lock {input.pins:q} \
            --reference {input.reference:q} \
            --reading {input.reading:q} \
            --quantised {input.quantised:q} \
            --adapters {input.adapters:q} \
            --adapter-references {input.adapter_references:q} \
            --bundle {input.bundle:q} \
            --texts {input.texts:q} \
            --record {output:q} \
            >{log:q}
        """


rule bundle_kuberay:
    input:
        code=code("bundle_kuberay.py"),
        lock=lock("vllm"),
        pins=inputs.ray_pins,
        parts=inputs.ray_parts,
        config=inputs.config_json,
        weights=inputs.vllm_weights,
        tokenizer=inputs.served_tokenizer,
        quantised=inputs.quantised,
        openvino=inputs.apps("cpu", "artifacts/{model}.int8.openvino"),
        onnx=inputs.apps("acpu", "artifacts/{model}.int8.onnx"),
        reference=inputs.smoke_reference,
        reading=inputs.served_reading,
    output:
        directory("artifacts/{model}_tp{tp}{served}.kuberay"),
    log:
        "logs/bundle_kuberay/{model}_tp{tp}{served}.log",
    benchmark:
        "logs/bundle_kuberay/{model}_tp{tp}{served}.tsv"
    params:
        settings=inputs.vllm,
        ray=inputs.ray,
    shell:
        """
        {sys.executable:q} {input.code[0]:q} \
            --model {wildcards.model} \
            --tp {wildcards.tp} \
            --settings {params.settings:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --ray {params.ray:q} \
            --tokenizer {input.tokenizer:q} \
            --openvino {input.openvino:q} \
            --onnx {input.onnx:q} \
            --parts {input.parts:q} \
            --lock {input.pins:q} \
            --reference {input.reference:q} \
            --reading {input.reading:q} \
            --quantised {input.quantised:q} \
            --bundle {output:q} \
            >{log:q}
        """


rule bundle_rayserve:
    input:
        code=code("bundle_rayserve.py"),
        lock=lock("rayserve"),
        pins=inputs.ray_pins,
        parts=inputs.ray_parts,
        config=inputs.config_json,
        weights=inputs.vllm_weights,
        tokenizer=inputs.served_tokenizer,
        quantised=inputs.quantised,
        openvino=inputs.apps("cpu", "artifacts/{model}.int8.openvino"),
        onnx=inputs.apps("acpu", "artifacts/{model}.int8.onnx"),
        reference=inputs.smoke_reference,
        reading=inputs.served_reading,
    output:
        directory("artifacts/{model}_tp{tp}{served}.rayserve"),
    log:
        "logs/bundle_rayserve/{model}_tp{tp}{served}.log",
    benchmark:
        "logs/bundle_rayserve/{model}_tp{tp}{served}.tsv"
    params:
        settings=inputs.vllm,
        ray=inputs.ray,
    shell:
        """
        {sys.executable:q} {input.code[0]:q} \
            --model {wildcards.model} \
            --tp {wildcards.tp} \
            --settings {params.settings:q} \
            --ray {params.ray:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --tokenizer {input.tokenizer:q} \
            --openvino {input.openvino:q} \
            --onnx {input.onnx:q} \
            --parts {input.parts:q} \
            --lock {input.pins:q} \
            --reference {input.reference:q} \
            --reading {input.reading:q} \
            --quantised {input.quantised:q} \
            --bundle {output:q} \
            >{log:q}
        """


rule verify_rayserve:
    input:
        code=code("verify_rayserve.py"),
        lock=lock("vllm"),
        env=env("vllm"),
        pins=inputs.ray_pins,
        parts=inputs.ray_parts,
        config=inputs.config_json,
        weights=inputs.vllm_weights,
        tokenizer=inputs.served_tokenizer,
        quantised=inputs.quantised,
        openvino=inputs.apps("cpu", "artifacts/{model}.int8.openvino"),
        onnx=inputs.apps("acpu", "artifacts/{model}.int8.onnx"),
        reference="artifacts/{model}{served}.reference.npz",
        reading=inputs.served_reading,
        texts="artifacts/{model}.texts.json",
        bundle="artifacts/{model}_tp{tp}{served}.rayserve",
    output:
        "artifacts/{model}_tp{tp}{served}.rayserve.verified.json",
    log:
        "logs/verify_rayserve/{model}_tp{tp}{served}.log",
    benchmark:
        "logs/verify_rayserve/{model}_tp{tp}{served}.tsv"
    params:
        settings=inputs.vllm,
        ray=inputs.ray,
    shell:
        """
        {PYTHON[vllm]:q} {input.code[0]:q} \
            --model {wildcards.model} \
            --tp {wildcards.tp} \
            --settings {params.settings:q} \
            --ray {params.ray:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --tokenizer {input.tokenizer:q} \
            --openvino {input.openvino:q} \
            --onnx {input.onnx:q} \
            --parts {input.parts:q} \
            --lock {input.pins:q} \
            --reference {input.reference:q} \
            --reading {input.reading:q} \
            --quantised {input.quantised:q} \
            --bundle {input.bundle:q} \
            --texts {input.texts:q} \
            --record {output:q} \
            >{log:q}
        """
