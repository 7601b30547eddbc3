"""The page of an artifact, in a real browser: it asks nobody, all can read it, its figures are true."""

import json
import os
import re
import subprocess

import pytest

import browser as chromium
from conftest import ROOT, once
from ingot.driver.release.pages import against, page, plots
from ingot.driver.release.pages import words as in_words
from ingot.driver.toolchains import toolchains

pytestmark = pytest.mark.slow
BUNDLE = "artifacts/demo_tp1.shortfin"
IRPA, OTHER = "artifacts/demo.irpa", "artifacts/demo.bf16.irpa"
LOSSY = ["artifacts/demo.q8_0.gguf", "artifacts/demo.q4_k_m.gguf"]
MOST = 1_000_000  # bytes of a page
AXE = "axe.run(document).then(r => r.violations.map(v => [v.impact, v.id, v.nodes[0].html]))"
ROWS = "[...document.querySelectorAll('tr')].map(r => [...r.children].slice(0, 2).map(c => c.innerText))"
needs_chromium = pytest.mark.skipif(
    not chromium.CHROMIUM, reason="needs chromium (Debian: chromium)"
)


def at(folder, command, store):
    path = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "INGOT_STORE": str(store), "PATH": path},
    )  # fmt: skip


@pytest.fixture
def reported(shared, tmp_path_factory):
    """A folder with pages: of the demo's bundle, of two archives side by side, of its forms, of all."""
    with once(tmp_path_factory, "reported") as (folder, done):
        wanted = [BUNDLE, IRPA, OTHER, *LOSSY]
        if not done:
            built = shared(folder, "--", *wanted, *(f"{one}.verified.json" for one in wanted))
            assert built.returncode == 0, built.stderr
            said = at(
                folder, f"ingot speed {' '.join(LOSSY)} --rounds 1 --generate 8", shared.store
            )
            assert said.returncode == 0, said.stderr
            for words in ([BUNDLE, "--svg", "pictures"], [OTHER, "--against", IRPA], ["demo"], []):
                said = at(folder, f"{ROOT}/.venv/bin/ingot report {' '.join(words)}", shared.store)
                assert said.returncode == 0, said.stderr
    return folder


@pytest.fixture
def browser(tmp_path):
    running = chromium.Browser(tmp_path / "profile")
    yield running
    running.close()


@needs_chromium
@pytest.mark.parametrize("name", ["demo_tp1.shortfin", "demo.bf16.irpa", "demo", "index"])
def test_a_page_asks_nobody_and_a_checker_finds_nothing(name, reported, browser):
    place = reported / f"reports/{name}.html"
    assert place.stat().st_size < MOST
    tools = toolchains.build(ROOT, "ci")
    for dark, pixels in ((False, 1200), (True, 1200), (False, 390)):
        browser.dark(dark)
        browser.width(pixels)
        browser.open(place)
        assert browser.run("document.documentElement.scrollWidth") <= pixels, "readable on a phone"
        browser.run((tools / "axe-core/axe.min.js").read_text() + ";0")
        found = browser.run(AXE)
        assert not [one for one in found if one[0] in ("serious", "critical")], found
    asked = {url for url in browser.requests if not url.startswith("data:")}
    assert asked <= {f"file://{place}"} and not browser.errors, (asked, browser.errors)


@needs_chromium
def test_the_figures_of_the_page_are_its_records(reported, browser):
    browser.open(reported / "reports/demo_tp1.shortfin.html")
    rows = browser.run(ROWS.replace("querySelectorAll('tr", "querySelectorAll('.said tr"))
    assert not [what for what, _ in rows if re.search(r"_|\w\.\w", what)], "no keys of JSON"
    shown = {one for _, found in rows for one in found.split(" of ")}
    record = json.loads((reported / f"{BUNDLE}.verified.json").read_text())
    numbers = against.flat({"verification": record})
    assert len(numbers) > 5
    for name, value in numbers.items():
        beside = re.search(r"(limits?|largest_logit)\b", name) or name.endswith("_limit")
        assert beside or page.number(value) in shown, name
    held = json.loads(browser.run("document.getElementById('report').textContent"))
    assert held == page.read(reported / "reports/demo_tp1.shortfin.html")
    assert held["verification"] == record
    for action in held["actions"]:
        for made in action["outputs"]:
            path = reported / made["path"]
            if path.is_file():
                assert made["bytes"] == path.stat().st_size
    drawn = browser.run("document.querySelectorAll('svg[role=img]').length")
    assert drawn == 2 + bool(held["run"]), (
        "the chain, the costs, and the run that built them, if one did"
    )


def test_the_forms_of_a_model_have_the_numbers_of_their_records_and_what_fit_counts(
    reported, shared
):
    forms = {one["target"]: one for one in page.read(reported / "reports/demo.html")["forms"]}
    assert {BUNDLE, IRPA, OTHER, *LOSSY} <= set(forms)
    fits = at(reported, f"ingot fit {LOSSY[1]} --on h200 --json", shared.store)
    for target in LOSSY:
        record = json.loads((reported / f"{target}.verified.json").read_text())
        form = forms[target]
        assert form["numbers"]["mean_kl"] == record["checks"]["numbers"]["mean_kl"]
        assert form["result"] == "passed" and form["bytes"] == (reported / target).stat().st_size
        assert form["unchecked"] == ["answers"] and "divergence" in form["checked"]
    said = json.loads(fits.stdout)
    (needed,) = (one["needs"] for one in said["forms"])
    assert forms[LOSSY[1]]["memory"] == {str(said["context"]): needed}
    assert forms[IRPA]["numbers"] == {} and forms[BUNDLE]["page"] == "demo_tp1.shortfin.html"
    card = at(reported, "ingot report demo --markdown", shared.store).stdout.splitlines()
    *card, _, where = card
    assert re.fullmatch(r"Speed: .*, \d+ cores, \d+ threads, .*", where)
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in card)
    by_form = {row[0].strip("*`"): dict(zip(heads, row, strict=True)) for row in rows}
    assert set(by_form) == {one["title"] for one in forms.values()}
    assert "demo_tp1.f32.mlir" not in by_form and "demo_tp1.vmfb" not in by_form, "no forms alone"
    measured = json.loads((reported / "artifacts/demo.speed.json").read_text())
    for one in measured["forms"]:
        cell = by_form[one["artifact"].removeprefix("artifacts/")]["generation, tokens/s"]
        assert float(cell) == pytest.approx(one["generation"]["median"], rel=1e-3)
    assert by_form["demo.irpa"]["generation, tokens/s"] == ""
    assert by_form["demo.q4_k_m.gguf"]["checked"] == "weights, tokenizer"
    assert "\u00a0MB" in by_form["demo.q4_k_m.gguf"]["size"], "a number stays with its unit"
    assert float(by_form["demo.q4_k_m.gguf"]["mean KL"]) == pytest.approx(
        forms[LOSSY[1]]["numbers"]["mean_kl"], rel=0.05
    )


def test_the_line_joins_what_no_smaller_form_is_as_near_as():
    def row(name, size, kl):
        return {"artifact": name, "bytes": size, "mean_kl": kl}

    rows = [row("f16", 16, 0), row("q8", 8, 0.1), row("wide", 9, 0.1), row("worse", 8, 0.2)]
    assert plots.front([*rows, row("q4", 4, 0.5)]) == {"f16", "q8", "q4"}


def test_a_record_is_in_words_each_number_beside_what_it_is_of_and_its_limit():
    checks = {
        "tensors": 30, "tensors_equal": 9, "limit": "the nearest value", "prompts": 26, "greedy_equal": 25,
        "greedy_ties": 1, "tie_limit": {"prompts": 0.1, "logits": 0.002, "dtype": "f16"},
        "first_limit": 0.5, "first_tokens_equal": 26, "errors": {"Q4_K": 0.07}, "values_rounded": 0,
        "error_limits": {"Q4_K": 0.15}, "numbers": {"same_top": 0.98, "limits": {"same_top": 0.97}},
        "in_another": {"prompts": 3, "greedy_equal": 3}, "a_new_one": 7, "packed_limit": 0.3,
        "packed_logit_difference": 0.1, "in_one_batch": {"speed-limit": {"errors": {"greedy_ties": 4}}},
    }  # fmt: skip
    limits = {"errors.Q4_K": 0.15, "numbers.same_top": 0.97}
    rows = in_words.rows(checks, limits)
    found = [(one["what"], one["found"], one["of"], one["limit"]) for one in rows]
    assert [one[1:] for one in found] == [
        (9, 30, "the nearest value"), (0.07, None, 0.15), (25, 26, None),
        (1, 26, "at most 10% of them, 0.002 apart"), (26, 26, "at least 50%"), (0.98, None, "at least 97%"),
        (7, None, None), (0.1, None, 0.3), (3, 3, None), (4, None, None),
    ]  # fmt: skip
    names = [one[0] for one in found]
    assert names[1] == "error of the weights in Q4_K, as a share of them"
    assert names[6:9] == ["a new one", "packed logit difference", f"in another: {names[2]}"]
    assert names[9].startswith("in one batch, speed-limit")


def test_labels_leave_out_a_name_that_all_share():
    assert plots.apart(["artifacts/m.q4_k_m.gguf", "artifacts/m.gguf"]) == ["q4_k_m.gguf", "gguf"]
    assert plots.apart(["artifacts/m_tp2.vmfb", "artifacts/m.gguf"]) == ["tp2.vmfb", "gguf"]
    for names in (["m.gguf"], ["m.gguf", "n.gguf"]):
        assert plots.apart([f"artifacts/{name}" for name in names]) == names


def test_a_page_says_how_to_make_it_again_and_to_check_its_digest(reported, shared, tmp_path):
    for name in ("demo_tp1.shortfin", "demo.bf16.irpa"):
        commands = page.read(reported / f"reports/{name}.html")["commands"]
        for words in ("make it again", "check its digest", "see why it would be built"):
            command = commands[words].replace("snakemake ", f"snakemake -s {ROOT}/Snakefile ")
            done = at(reported, command, shared.store)
            assert done.returncode == 0, done.stderr
    check = commands["check its digest"]
    (tmp_path / "artifacts").mkdir()
    (tmp_path / OTHER).write_text("else")
    assert at(tmp_path, check, shared.store).returncode != 0


def test_two_artifacts_beside_each_other_say_what_changed_and_what_it_did(reported):
    text = (reported / "reports/demo.bf16.irpa.html").read_text()
    assert "Against demo.irpa of" in text
    assert re.search(r"dtype: .*f16.* → .*bf16", text)
    assert re.search(
        r"(safetensors_to_gguf|gguf_to_irpa): (seconds|memory)", text
    )  # one may be equal


def test_pictures_are_files_of_their_own_too(reported):
    text = (reported / "pictures/demo_tp1.shortfin.costs.svg").read_text()
    assert text.startswith("<svg ") and "var(--" not in text and "export_mlir" in text


@pytest.mark.parametrize(
    "words, reason",
    [(["artifacts/demo.q4_k_m.gguf"], "not here, expected something built; snakemake"),
     (["artifacts/demoo.gguf"], "unknown model demoo"),
     ([IRPA, "--against", "reports/none.html"], "no page of an artifact"),
     (["--against", IRPA], "no artifact to compare"),
     (["demo"], "no form of it is here, expected one or more; snakemake artifacts/demo.gguf"),
     (["demo", "--against", IRPA], "compares artifacts"),
     (["--markdown"], "no model, expected one of the catalogue"),
     (["artifacts/demo.gguf", "--markdown"], "no model, expected one of the catalogue")],
)  # fmt: skip
def test_what_cannot_be_reported_is_one_line(words, reason, ingot, tmp_path):
    done = ingot("report", *words, cwd=tmp_path)
    assert done.returncode == 1 and reason in done.stderr and done.stderr.count("\n") == 1, (
        done.stderr
    )


def test_a_damaged_artifact_is_not_called_absent(ingot, tmp_path):
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts/demo.gguf").write_bytes(b"damaged")
    assert "demo.gguf: its bytes are not on record" in ingot("report", "artifacts/demo.gguf").stderr
