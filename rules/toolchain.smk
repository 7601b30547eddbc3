"""Build a toolchain from its lock, once per machine.

The mark lies in the working folder and holds no path, so that the same build in another user's
account has the same inputs; the toolchain itself is in the user's cache.
"""


rule toolchain:
    output:
        "logs/toolchain/{toolchain}",
    log:
        "logs/toolchain/{toolchain}.log",
    wildcard_constraints:
        toolchain="[a-z0-9-]+-[0-9a-f]{12}",
    localrule: True
    params:
        name=lambda wildcards: wildcards.toolchain.rpartition("-")[0],
        volatile=True,  # not cached: it is about this machine
    shell:
        """
        : >{log:q}
        INGOT_OUTPUT={output:q} PYTHONPATH={ROOT:q}/scripts {sys.executable:q} -P -m ingot.driver.commands.cli toolchain {params.name:q} \
            2>&1 >>{log:q} | tee -a {log:q} >&2
        echo {wildcards.toolchain:q} >{output:q}
        """
