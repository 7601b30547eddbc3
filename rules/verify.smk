"""What each artifact was compared with, and the numbers: artifacts/<any>.verified.json."""


rule verify_gguf:
    input:
        code=code("verify_gguf.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=config_json,
        weights=weights,
        gguf="artifacts/{model}{dtype}.gguf",
    output:
        "artifacts/{model}{dtype}.gguf.verified.json",
    log:
        "logs/verify_gguf/{model}{dtype}.log",
    benchmark:
        "logs/verify_gguf/{model}{dtype}.tsv"
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --gguf {input.gguf:q} \
            --record {output:q} \
            >{log:q}
        """


rule verify_irpa:
    input:
        code=code("verify_irpa.py"),
        lock=lock("convert"),
        env=env("convert"),
        gguf="artifacts/{model}{dtype}.gguf",
        irpa="artifacts/{model}{dtype}.irpa",
    output:
        "artifacts/{model}{dtype}.irpa.verified.json",
    log:
        "logs/verify_irpa/{model}{dtype}.log",
    benchmark:
        "logs/verify_irpa/{model}{dtype}.tsv"
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --gguf {input.gguf:q} \
            --irpa {input.irpa:q} \
            --record {output:q} \
            >{log:q}
        """


for tp in targets.SIZES[1:]:

    rule:
        name:
            f"verify_shards_tp{tp}"
        input:
            code=code("verify_shards.py"),
            lock=lock("convert"),
            env=env("convert"),
            config=config_json,
            weights=weights,
            root=targets.archives("{model}", tp)[0],
            ranks=targets.archives("{model}", tp)[1:],
        output:
            f"{targets.archives('{model}', tp)[0]}.verified.json",
        log:
            f"logs/verify_shards/{{model}}_tp{tp}.log",
        benchmark:
            f"logs/verify_shards/{{model}}_tp{tp}.tsv"
        shell:
            """
            {PYTHON[convert]:q} {input.code[0]:q} \
                --checkpoint {input.config:q} {input.weights:q} \
                --root {input.root:q} \
                --ranks {input.ranks:q} \
                --record {output:q} \
                >{log:q}
            """


rule generate_reference:
    input:
        code=code("generate_reference.py"),
        lock=lock("iree"),
        env=env("iree"),
        config=config_json,
        tokenizer=tokenizer,
        weights=weights,
        prompts=prompts,
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


rule verify_vmfb:
    input:
        code=code("verify_vmfb.py"),
        lock=lock("iree"),
        env=env("iree"),
        vmfb="artifacts/{model}_tp{tp}{hw}.vmfb",
        config="artifacts/{model}_tp{tp}.config.json",
        parameters=parameters,
        reference="artifacts/{model}.reference.npz",
    output:
        "artifacts/{model}_tp{tp}{hw}.vmfb.verified.json",
    log:
        "logs/verify_vmfb/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/verify_vmfb/{model}_tp{tp}{hw}.tsv"
    params:
        device=device,
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --vmfb {input.vmfb:q} \
            --config {input.config:q} \
            --parameters {input.parameters:q} \
            --reference {input.reference:q} \
            --device {params.device:q} \
            --record {output:q} \
            >{log:q}
        """


rule verify_shortfin:
    input:
        code=code("verify_shortfin.py"),
        lock=lock("iree"),
        env=env("iree"),
        bundle="artifacts/{model}_tp{tp}{hw}.shortfin",
        reference="artifacts/{model}.reference.npz",
    output:
        "artifacts/{model}_tp{tp}{hw}.shortfin.verified.json",
    log:
        "logs/verify_shortfin/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/verify_shortfin/{model}_tp{tp}{hw}.tsv"
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --bundle {input.bundle:q} \
            --reference {input.reference:q} \
            --record {output:q} \
            >{log:q}
        """
