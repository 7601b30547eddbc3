"""Small rules, one of each kind that a cache can get wrong; bench/wrong_hits.py edits them."""

import yaml

LAB = yaml.safe_load(open("lab.yaml"))


rule lab_say:
    input:
        code=code("lab_step.py"),
        lock=lock("lab"),
        env=env("lab"),
    output:
        "lab/{word}.said",
    shell:
        "{PYTHON[lab]:q} {input.code[0]:q} --out {output:q} --words {wildcards.word:q}"


rule lab_join:
    input:
        code=code("lab_step.py"),
        lock=lock("lab"),
        env=env("lab"),
        base="labdata/one",
        delta="labdata/two",
    output:
        "lab/joined",
    params:
        words=lambda wildcards: LAB["words"],
        flags=lambda wildcards: LAB["flags"],
    shell:
        """
        {PYTHON[lab]:q} {input.code[0]:q} --out {output:q} --files {input.base:q} {input.delta:q} \
            --lock {input.lock[0]:q} --words {params.words:q} {params.flags:q}
        """


rule lab_concat:
    input:
        "labdata/one",
        "labdata/two",
    output:
        "lab/concat",
    shell:
        "cat {input:q} > {output:q}"


rule lab_list:
    input:
        code=code("lab_step.py"),
        lock=lock("lab"),
        env=env("lab"),
        tree="labtree",
    output:
        "lab/listed",
    shell:
        "{PYTHON[lab]:q} {input.code[0]:q} --out {output:q} --tree {input.tree:q}"


rule lab_pack:
    input:
        code=code("lab_step.py"),
        lock=lock("lab"),
        env=env("lab"),
        joined="lab/joined",
    output:
        directory("lab/packed"),
    shell:
        "{PYTHON[lab]:q} {input.code[0]:q} --pack {output:q} --files {input.joined:q}"


rule lab_split:
    input:
        "labdata/one",
    output:
        first="lab/first",
        second="lab/second",
    shell:
        "cat {input:q} > {output.first:q}; echo 2 > {output.second:q}"
