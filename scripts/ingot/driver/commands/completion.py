"""Completion of commands and of target names: `source <(ingot completion bash)`, in your .bashrc; or zsh.

For `ingot`, its options too; for `snakemake`, the targets of the catalogue: artifacts/lla<TAB>.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

# The targets are asked for once per shell and folder, and again when a catalogue was written.
TARGETS = """
_ingot_targets() {
    local state
    state="$PWD $(stat -c %Y models.yaml models.local.yaml 2>/dev/null | tr '\\n' ' ')"
    if [ "$state" != "$_ingot_state" ]; then
        _ingot_state=$state
        _ingot_known=$(ingot targets 2>/dev/null)
    fi
}
"""
BASH = """
_ingot_words() {
    local word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    case $word in
    artifacts/*)
        _ingot_targets
        mapfile -t COMPREPLY < <(compgen -W "$_ingot_known" -- "$word")
        ;;
    *) [ "$1" = ingot ] && _shtab_ingot "$@" ;;
    esac
}
complete -o default -F _ingot_words ingot snakemake
"""
ZSH = """
_ingot_words() {
    if [[ $PREFIX == artifacts/* ]]; then
        _ingot_targets
        compadd -- ${(f)_ingot_known}
    elif [[ $words[1] == ingot ]]; then
        _shtab_ingot "$@"
    else
        _files
    fi
}
compdef _ingot_words -N ingot snakemake
"""
SHELLS = {"bash": BASH, "zsh": ZSH}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SHELLS))


def run(root: Path, options: Namespace) -> None:
    import shtab

    script = shtab.complete(options.parser(), options.shell)
    if options.shell == "zsh":  # to be sourced, not put into a folder of functions
        script = script.partition("if [[ $zsh_eval_context")[0]
    print(script + TARGETS + SHELLS[options.shell])
