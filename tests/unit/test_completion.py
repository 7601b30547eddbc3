"""Completion in real shells: commands, options, and target names of the catalogue."""

import os
import shutil
import subprocess

import pytest

from conftest import ROOT
from ingot.driver.commands import cli, completion

BASH = """
source <(ingot completion bash)
complete_of() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
    COMPREPLY=()
    _ingot_words "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    printf '%s\\n' "${COMPREPLY[@]}"
    echo "=="
}
complete_of snakemake artifacts/demo_tp1.vm
complete_of ingot plan artifacts/llama405b_tp8.vmf
complete_of ingot publ
complete_of ingot plan --conf
complete_of snakemake -
"""
ZSH = """
zmodload zsh/zpty
zpty shell 'zsh -f -i'
until_seen() {
    for _ in {1..100}; do
        while zpty -r -t shell line; do seen+=$line; done
        [[ $seen == *$1* ]] && return
        sleep 0.3
    done
}
zpty -w shell 'autoload -U compinit && compinit -u -D; PS1=; source <(ingot completion zsh); echo rea""dy'
until_seen ready
zpty -w -n shell $'snakemake artifacts/demo_tp1.vm\t'
until_seen artifacts/demo_tp1.vmfb
print -r -- $seen
zpty -d shell
"""


def run(shell, script):
    path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [shell, "-c", script], cwd=ROOT, env={**os.environ, "PATH": path, "TERM": "dumb"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_bash_knows_targets_commands_and_options():
    done = run("bash", BASH)
    assert done.returncode == 0 and not done.stderr, done.stderr
    said = [block.split() for block in done.stdout.split("==\n")[:-1]]
    assert said[:3] == [["artifacts/demo_tp1.vmfb"], ["artifacts/llama405b_tp8.vmfb"], ["publish"]]
    assert said[3:] == [["--configfile"], []]


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_completes_a_target():
    said = run("zsh", ZSH).stdout
    assert "artifacts/demo_tp1.vmfb" in said, said


def test_each_shell_is_named():
    assert set(completion.SHELLS) == {"bash", "zsh"}
    assert completion.__name__.rpartition(".")[2] in cli.COMMANDS
