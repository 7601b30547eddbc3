"""Build a toolchain from its lock, once a machine: <cache>/<name>-<digest of the lock>/ready."""


rule toolchain:
    output:
        f"{toolchains.cache()}/{{name}}-{{digest}}/ready",
    wildcard_constraints:
        name="[a-z0-9]+",
        digest="[0-9a-f]{12}",
    localrule: True
    shell:
        "{sys.executable:q} -m ingot.driver.cli toolchain {wildcards.name:q} >&2"
