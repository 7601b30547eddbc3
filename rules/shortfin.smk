"""What a server needs, in one folder that may be moved: artifacts/M_tpN[.HW].shortfin."""


rule bundle_shortfin:
    input:
        code=code("bundle_shortfin.py"),
        lock=lock("iree"),
        vmfb="artifacts/{model}_tp{tp}{hw}.vmfb",
        config=programs.config,
        parameters=inputs.parameters,
        tokenizer=inputs.tokenizer,
    output:
        directory("artifacts/{model}_tp{tp}{hw}.shortfin"),
    log:
        "logs/bundle_shortfin/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/bundle_shortfin/{model}_tp{tp}{hw}.tsv"
    params:
        device=inputs.device,
    shell:
        """
        {sys.executable:q} {input.code[0]:q} \
            --vmfb {input.vmfb:q} \
            --config {input.config:q} \
            --parameters {input.parameters:q} \
            --tokenizer {input.tokenizer:q} \
            --lock {input.lock[0]:q} \
            --device {params.device:q} \
            --bundle {output:q} \
            >{log:q}
        """


rule verify_shortfin:
    input:
        code=code("verify_shortfin.py"),
        lock=lock("iree"),
        env=env("iree"),
        vmfb="artifacts/{model}_tp{tp}{hw}.vmfb",
        config=programs.config,
        parameters=inputs.parameters,
        tokenizer=inputs.tokenizer,
        bundle="artifacts/{model}_tp{tp}{hw}.shortfin",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
    output:
        "artifacts/{model}_tp{tp}{hw}.shortfin.verified.json",
    log:
        "logs/verify_shortfin/{model}_tp{tp}{hw}.log",
    benchmark:
        "logs/verify_shortfin/{model}_tp{tp}{hw}.tsv"
    params:
        device=inputs.device,
    shell:
        """
        {PYTHON[iree]:q} {input.code[0]:q} \
            --vmfb {input.vmfb:q} \
            --config {input.config:q} \
            --parameters {input.parameters:q} \
            --tokenizer {input.tokenizer:q} \
            --lock {input.lock[0]:q} \
            --device {params.device:q} \
            --bundle {input.bundle:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --record {output:q} \
            >{log:q}
        """
