"""Every option that `snakemake --help` lists, over a filled store: right, or refused in one line.

An option is run where it can decide something.  Those that say how many, how often or how loud stand in one
command; what asks for conda, containers or a cluster is asked of a demo that needs none.
"""

import re
import subprocess
from dataclasses import dataclass

import pytest

from conftest import IRPA, ROOT

GGUF = "artifacts/demo.gguf"
NOTHING = "Nothing to be done"
LONGEST = 60  # seconds; one that does not end is what this file is for


@dataclass
class Case:
    """A command; its options' words, what it says, and its exit status."""

    words: str
    said: str = NOTHING
    status: int = 0
    target: str = f"-- {IRPA}"


CASES = [
    # what is built
    Case("--dry-run"), Case("--dryrun"), Case("-n"),
    Case("--force", "done .*demo.irpa"), Case("-f", "done .*demo.irpa"),
    Case("--forceall", "done .*demo.gguf"), Case("-F", "done .*demo.gguf"),
    Case("--forcerun gguf_to_irpa", "done .*demo.irpa"),
    Case("-R safetensors_to_gguf", "done .*demo.gguf"),
    Case("--until gguf_to_irpa"), Case("-U gguf_to_irpa"),
    Case("--omit-from gguf_to_irpa", ""), Case("-O gguf_to_irpa", ""),
    Case("--batch all=1/1"),
    Case("--touch", "error: --touch: has no effect", 1), Case("-t", "error: --touch: has no effect", 1),
    Case("--executor touch", "error: --touch: has no effect", 1), Case("-e local"),
    Case("--delete-all-output", "Deleting"), Case("--delete-temp-output", ""),
    Case("--cache"),
    Case("--allowed-rules gguf_to_irpa safetensors_to_gguf toolchain"),
    Case("--target-jobs gguf_to_irpa:model=demo,dtype=", "done .*demo.irpa", target=""),
    Case("--consider-ancient gguf_to_irpa=0"),
    Case("--rerun-triggers mtime"), Case("--rerun-incomplete"), Case("--ri"),
    Case("--strict-dag-evaluation functions cyclic-graph periodic-wildcards"),
    Case("--config keep=targets"), Case("-C keep=all"), Case("--replace-workflow-config"),
    Case("--configfile nope.yaml", "error: nope.yaml: no such file", 1),
    Case("--configfile=nope.yaml", "error: nope.yaml: no such file", 1),
    Case(f"--configfile models.yaml {IRPA}", "write -- before the targets", 1, target=""),
    Case("--configfiles models.yaml"),
    Case("--directory .", NOTHING), Case("-d .", NOTHING),
    Case("--snakefile Snakefile"), Case("-s Snakefile"),
    # what is shown
    Case("--summary", rf"{IRPA}\t.*\tok\tno update"), Case("-S", "output_file"),
    Case("--detailed-summary", rf"{IRPA}\t.*gguf_to_irpa"), Case("-D", "shellcmd"),
    Case("--dag dot", "digraph"), Case("--dag mermaid-js", "flowchart"),
    Case("--rulegraph dot", "digraph"), Case("--filegraph", "digraph"), Case("--d3dag", '"nodes"'),
    Case("--list-rules", "gguf_to_irpa", target=""), Case("--list", "gguf_to_irpa", target=""),
    Case("-l", "gguf_to_irpa", target=""),
    Case("--list-target-rules", "all", target=""), Case("--lt", "all", target=""),
    Case("--list-changes code", ""), Case("--lc input", ""),
    Case("--list-input-changes", ""), Case("--li", ""), Case("--list-params-changes", ""),
    Case("--lp", ""),
    Case("--list-untracked", ""), Case("--lu", ""),
    Case("--lint", "Congratulations"), Case("--print-compilation", "__rule_all"),
    Case("--report r.html", "Report created|report"),
    Case("--report-stylesheet none.css --report r.zip", "", 1),
    Case("--export-cwl x.cwl", ""),
    Case("--generate-unit-tests u", "error: --generate-unit-tests: copies", 1),
    Case("--containerize dockerfile", "FROM"), Case("--archive a.tar.gz", ""),
    Case("--version", r"^9\.27\.1", target=""), Case("-v", r"^9\.27\.1", target=""),
    Case("--help", "usage: snakemake", target=""), Case("-h", "usage: snakemake", target=""),
    # what is kept of a run
    Case("--unlock", ""), Case("--cleanup-metadata artifacts/demo.irpa", "not present", 1, target=""),
    Case("--cm artifacts/demo.irpa", "not present", 1, target=""), Case("--cleanup-shadow", ""),
    Case("--conda-cleanup-pkgs cache"), Case("--conda-cleanup-envs", ""), Case("--list-conda-envs", ""),
    Case("--conda-create-envs-only", ""), Case("--container-cleanup-images", ""),
    # how it runs: each on its own has nothing to decide on a demo that is there
    Case("--profile none", NOTHING), Case("--workflow-profile none"),
    Case("--cores 1 --local-cores 1 --resources mem_mb=1000000 --set-threads gguf_to_irpa=1"),
    Case("--max-threads 2"),
    Case("-c 1 --res mem_mb=1000000 --set-resources gguf_to_irpa:mem_mb=100 --set-scatter a=2"),
    Case("--set-resource-scopes mem_mb=local --default-resources mem_mb=100"),
    Case("--default-res mem_mb=100 --preemptible-rules gguf_to_irpa --preemptible-retries 1"),
    Case("--keep-going --prioritize artifacts/demo.irpa --shadow-prefix s --scheduler greedy"),
    Case("-k -P artifacts/demo.irpa --scheduler ilp --scheduler-greediness 0.5 --scheduler-subsample 5"),
    Case("--greediness 0.5 --scheduler-solver-path . --nosw"), Case("--no-subworkflows"),
    Case("--groups gguf_to_irpa=a --group-components a=2 --local-groupid x --precommand true"),
    Case("--skip-script-cleanup --keep-incomplete --drop-metadata --printshellcmds --nocolor"),
    Case("-p --debug-dag --verbose --force-use-threads --allow-ambiguity"), Case("-a --nolock"),
    Case("--quiet all", ""), Case("-q rules", ""),
    Case("--ignore-incomplete --max-inventory-time 5 --trust-io-cache --max-checksum-file-size 10"),
    Case("--ii --latency-wait 1 --wait-for-files models.yaml --runtime-source-cache-path cache"),
    Case("--output-wait 1"), Case("-w 1 --wait-for-free-local-storage 1s"),
    Case("--queue-input-wait-time 1 --omit-flags temp --notemp"), Case("--no-temp"), Case("--nt"),
    Case("--all-temp"),
    Case("--unneeded-temp-files x --keep-storage-local-copies --not-retrieve-storage"),
    Case("--target-files-omit-workdir-adjustment --max-jobs-per-timespan 5/1s"),
    Case("--max-jobs-per-second 5 --max-status-checks-per-second 5 --seconds-between-status-checks 1"),
    Case("--retries 1 --wrapper-prefix w/ --local-storage-prefix l --remote-job-local-storage-prefix r"),
    Case("--restart-times 1"), Case("-T 1 --default-storage-prefix p"),
    Case("--shared-fs-usage input-output persistence --no-hooks --attempt 2 --show-failed-logs"),
    Case("--job-deploy-sources --benchmark-extended --persistence-backend file --container-image i"),
    Case("--jobname j.{jobid} --conda-base-path c --conda-not-block-search-path-envvars"),
    Case("--jn j.{jobid} --conda-prefix c --conda-frontend conda --apptainer-prefix a --apptainer-args b"),
    Case("--singularity-prefix a --singularity-args b --use-envmodules"),
    Case("--envvars HOME"), Case("--deploy-sources a b", "storage provider", 1),
    Case("--mode default"), Case("--jobs 1"), Case("-j 1"),
    Case("--runtime-profile prof.txt", "error: --runtime-profile: needs yappi", 1),
    Case("--notebook-listen localhost:1"),
    Case("--edit-notebook n.ipynb", "", 1), Case("--draft-notebook n.ipynb", "", 1),
    Case("--wait-for-files-file /dev/null"), Case("--debug --cores 1"),
    Case("--report-after-run --report r.html", ""),
    Case("--report-metadata none.yaml --report r.html", "error: none.yaml: no such file", 1),
    Case("--reporter html --report-html-path r.html", ""),
    Case("--report-html-stylesheet-path x --report r.html", ""),
    Case("--scheduler-greedy-greediness 1.0 --scheduler-greedy-omit-prioritize-by-temp-and-input"),
    Case("--scheduler-ilp-solver PULP_CBC_CMD --scheduler ilp", ""),
    Case("--scheduler-ilp-solver-path ."),
    Case("--logger nope", "", 2), Case("--persistence-backend db"),
    Case("--persistence-backend-db-url sqlite:///x.db --persistence-backend db"),
    Case("--default-storage-provider fs", "", 1), Case("--immediate-submit --notemp"),
    Case("--is", "", 1),
    Case("--jobscript none.sh"), Case("--js none.sh"),
    Case("--software-deployment-method conda", ""), Case("--deployment-method env-modules"),
    Case("--deployment env-modules"), Case("--sdm env-modules"), Case("--use-conda", ""),
    Case("--use-apptainer", ""), Case("--use-singularity", ""),]  # fmt: skip


def options_of(text):
    """The options that argparse lists: each at the start of its line, with its other spellings."""
    heads = re.findall(r"^  (-[-\w, .{}|:=\[\]<>/\"'()*+%]*)$|^  (-\S.*?)(?:  .*)?$", text, re.M)
    return {
        o for head in heads for o in re.findall(r"(?:^|[ ,])(-{1,2}[a-zA-Z][\w-]*)", " ".join(head))
    }


@pytest.fixture(scope="session")
def help_text():
    command = [ROOT / ".venv/bin/snakemake", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_each_option_of_its_help_is_run_here(help_text):
    tried = {word.partition("=")[0] for case in CASES for word in case.words.split()}
    assert options_of(help_text) - tried == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words.replace("/", "_"))
def test_is_right_or_refused_in_one_line(case, built, command):
    words = ("--cores", "2", *case.words.split(), *case.target.split())
    done = command(built("a"), *words, timeout=LONGEST)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert done.returncode == case.status, said
    assert re.search(case.said, said, re.M), said
