"""Every command line that a page, a docstring or a comment shows is one that can be given."""

import re
import shlex
import textwrap

import pytest
import yaml
from snakemake.cli import get_argument_parser

from conftest import ROOT
from ingot.driver.catalogue import schema, targets
from ingot.driver.commands import cli

PAGES = sorted(
    {
        *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("artifacts/*.md"), ROOT / "models.yaml",
        ROOT / "models.schema.json", ROOT / "Snakefile", *ROOT.glob("rules/*.smk"),
        *ROOT.glob("scripts/ingot/driver/commands/*.py"), *ROOT.glob("envs/*/README.md"),
    }
    - {ROOT / "docs/tour.md", ROOT / "CHANGELOG.md"}
)  # fmt: skip
LINE = re.compile(r"^[\s#$]*((?:snakemake|ingot) [^`]*?)(?:\s{2,}.*|\s+#.*)?$", re.M)
QUOTED = re.compile(r"`((?:snakemake|ingot) [^`\n]+)`")
WORDS = {"TARGET": "artifacts/demo.irpa", "FOLDER": "/gone", "<name>": "iree"}


def documented():
    for page in PAGES:
        text = page.read_text()
        for found in (*LINE.findall(text), *QUOTED.findall(text)):
            command = found.split(" #")[0].replace("artifacts/...", "all").strip().rstrip(".,;:")
            program, first, *rest = command.split()
            if "=" in first or "..." in command or "{" in command or "COMMAND" in command:
                continue  # Python, or abridged
            if program == "ingot" and not rest:
                continue  # a command's name in a sentence
            yield pytest.param(command, id=f"{page.relative_to(ROOT)}: {command}")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    own = tmp_path_factory.mktemp("own") / "mine.yaml"
    demo = schema.load(ROOT)["models"]["demo"]
    keys = ("path", "name", "architecture", "pre_tokenizer")
    mine = {key: demo[key] for key in keys} | {"ray": {"image": f"ray@sha256:{64 * '0'}"}}
    adapted = {"adapter": {"base": "my-finetune", "lora": "anywhere"}}
    models = {"mine": mine, "my-finetune": mine, "my-adapter": adapted}
    own.write_text(yaml.safe_dump({"models": models}))
    return schema.load(ROOT, str(own)) | {"publish": "oci://ghcr.io/me/models"}


TASKS = sorted((ROOT / "docs/tasks").glob("*.md"))
YAML = re.compile(r"^ *```yaml\n(.*?)^ *```", re.M | re.S)


@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_a_tasks_page_shows_catalogues_that_are_taken(page):
    text = page.read_text()
    for block in YAML.findall(text):
        said = yaml.safe_load(textwrap.dedent(block))
        if not {"models", "hardware", "devices"} & {*said}:
            continue  # of the site
        found = schema.load(ROOT)
        demo = {key: found["models"]["demo"][key] for key in ("path", "name", "architecture")}
        found["models"]["my-finetune"] = {**demo, "pre_tokenizer": "llama-bpe"}
        for name, entry in said.get("models", {}).items():
            more = {} if "adapter" in entry else {**demo, "pre_tokenizer": "llama-bpe"}
            found["models"][name] = {**more, **entry}
        for table in ("hardware", "devices"):
            found[table] |= said.get(table, {})
        schema.complete(found, ROOT)
    assert f"(docs/tasks/{page.name})" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "page",
    [*(page for page in PAGES if page.suffix == ".md"), ROOT / "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_link_leads_to_a_file_and_a_heading(page):
    for link in re.findall(r"\]\(([^):]+)\)", page.read_text()):
        path, _, heading = link.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), link
        if heading:
            prose = re.sub(r"^ *```.*?^ *```", "", there.read_text(), flags=re.M | re.S)
            titles = re.findall(r"^#+ (.*)", prose, re.M)
            names = [re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles]
            assert heading in names, link


@pytest.mark.parametrize("command", [*documented()])
def test_a_documented_command_is_one_that_can_be_given(command, catalogue, capsys):
    for word, meaning in WORDS.items():
        command = command.replace(word, meaning)
    program, *words = shlex.split(command)
    if program == "ingot":
        cli.parser().parse_args(words)
        return
    options = get_argument_parser().parse_args(words)
    asked = [target for target in options.targets if target != "all" and "<" not in target]
    named = [word for word in words if word.startswith("artifacts/")]
    assert set(asked) == set(named) - {word for word in named if "<" in word}, (
        "an option took the target"
    )
    for target in asked:
        if "llama999b" not in target:  # shows what a wrong name gets
            assert targets.why_not(target, catalogue) is None
