"""Publish what was verified: artifacts/X.published.json says where, and by which digest."""


rule publish:
    input:
        artifact="artifacts/{artifact}",
        record="artifacts/{artifact}.verified.json",
    output:
        "artifacts/{artifact}.published.json",
    log:
        "logs/publish/{artifact}.log",
    wildcard_constraints:
        artifact="[^/]+",
    localrule: True
    params:
        to=lambda wildcards: f"{config['publish']}:{wildcards.artifact}",
        catalogue=inputs.catalogue_file,
        volatile="asked",  # what the registry has is not ours to remember; it is asked each time
    shell:
        """
        PYTHONPATH="$INGOT_CODE" {sys.executable:q} -P -m ingot.driver.commands.cli publish \
            {input.artifact:q} \
            --to {params.to:q} \
            --configfile {params.catalogue:q} \
            --record {output:q} \
            >{log:q}
        """
