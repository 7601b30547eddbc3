"""What a page of an artifact holds, from plain values."""

import re

import pytest

from ingot.base.refused import Refused
from ingot.driver.commands import report as command
from ingot.driver.release.pages import about, page, plots
from ingot.driver.release.pages.against import against

KEY = {
    "version": 2, "rule": "convert", "command": "c", "outputs": [], "params": {"dtype": "f16"},
    "wildcards": {}, "code": {"a.py": "sha256:1"}, "lock": {}, "inputs": {"gguf": "sha256:2"},
}  # fmt: skip


def action(rule, reads=(), seconds=2.0, **fields):
    made = {"path": f"artifacts/{rule}", "digest": f"sha256:{rule * 9}", "bytes": 10**6}
    return {
        "rule": rule, "key": rule, "outputs": [made], "reads": list(reads), "seconds": seconds,
        "memory": 10**8, "bytes": 10**6, "cores": 2, "ended": 0.0, "about": {},
        "expected": {"seconds": 1.0, "memory": 10**8, "bytes": 10**6}, "fields": {**KEY, **fields},
    }  # fmt: skip


def report(**more):
    said, expected = [1, 2, 3], [1, 2, 4]
    checks = {
        "by_prompt": [
            {"prompt_tokens": 5, "equal": True, "largest_logit_difference": 1e-5},
            {"prompt_tokens": 9, "equal": False, "largest_logit_difference": 2e-5,
             "said": said, "expected": expected},
        ],
        "largest_logit": 18.0, "difference_limit": {"share_of_largest_logit": 1e-4},
        "numbers": {"mean_kl": 0.25, "limits": {"mean_kl": 0.5}},
    }  # fmt: skip
    found = {
        "target": "artifacts/m.gguf", "title": "m.gguf", "what": "a file", "digest": "sha256:00",
        "bytes": 10**6, "files": 1, "written": "today", "licence": {"name": "mit", "where": "LICENSE"},
        "source": {"name": "M", "hub": "o/m", "path": "", "revision": "abc", "commit": ""},
        "verification": {"result": "passed", "reference": "the checkpoint", "checks": checks},
        "actions": [action("convert"), action("other"), action("join", (0, 1))],
        "format": about.FORMAT, "verifiable": True, "older": "",
        "sources": {"model.safetensors": "sha256:9"}, "toolchains": {"convert": {"gguf": "0.1"}},
        "serving": {}, "run": {}, "commands": {"make it again": "snakemake artifacts/m.gguf"},
    }  # fmt: skip
    return found | more


def shown(found, compared=None):
    pictures = {name: getattr(plots, name)(found) for name in ("costs", "run", "prompts")}
    return page.page(found, pictures, compared)


def test_a_page_holds_its_data_and_stands_alone():
    text = shown(report())
    assert not re.search(r'(src|href)="(https?:)?//', text) and "<script src" not in text
    (ids,) = [re.findall(r'\bid="([^"]+)"', text)]
    assert len(ids) == len(set(ids)), "each id once"
    assert "[1, 2, 4]" in text and "[1, 2, 3]" in text, "tokens that differ stand side by side"
    assert re.search(r"nats per token</th><td class=\"n\">0.25</td><td>0.5<", text)
    assert "sha256:convertconve" in text and "mit, by LICENSE" in text


def test_what_comes_from_outside_is_no_part_of_the_page(tmp_path):
    evil = "</script><script>alert(1)</script>"
    text = shown(report(title=evil, licence={"name": evil, "where": evil}))
    assert "<script>alert" not in text
    (tmp_path / "p.html").write_text(text)
    assert page.read(tmp_path / "p.html")["title"] == evil


def test_without_a_verification_or_costs_it_says_so():
    text = shown(report(verification={}, actions=[action("convert", seconds=None)]))
    assert "Not verified here" in text and "No cost is on record" in text


def test_the_chain_has_makers_above_and_a_line_from_each():
    found = page.chain(report()["actions"])
    a, b, joined = found["boxes"]
    assert a["y"] == b["y"] < joined["y"] and a["x"] != b["x"] and len(found["lines"]) == 2
    assert all(0 <= box["x"] <= found["width"] - found["box"] for box in found["boxes"])


def test_two_reports_say_which_field_and_which_number():
    now = report(actions=[action("convert", params={"dtype": "bf16"}, seconds=4.0), action("join")])
    now["verification"]["checks"]["numbers"]["mean_kl"] = 0.5
    found = against(now, report())
    assert {"action": "convert", "why": ["dtype: 'f16' → 'bf16'"]} in found["changes"]
    assert {"action": "other", "why": ["is gone"]} in found["changes"]
    assert {"name": "numbers.mean_kl", "then": 0.25, "now": 0.5, "ratio": 2.0} in found["numbers"]
    assert {"name": "convert: seconds", "then": 2.0, "now": 4.0, "ratio": 2.0} in found["cost"]
    assert "dtype: &#39;f16&#39; → &#39;bf16&#39;" in shown(now, found)
    assert against(report(), report()) | {"title": "", "written": ""} == {
        "title": "", "written": "", "same": True, "changes": [], "numbers": [], "cost": [],
    }  # fmt: skip


def test_a_run_is_drawn_beside_its_plan():
    jobs = [{"output": "artifacts/a", "since": 100.0, "seconds": 3.0, "bytes": 10**9}]
    run = {"since": 99.0, "jobs": jobs, "samples": [[100.0, 10**8], [101.0, 2 * 10**8]],
           "plan": {"memory": 10**8, "disk": 2 * 10**9, "disk_at": [[0, 0], [3, 10**9]]}}  # fmt: skip
    picture = plots.run({"run": run})
    assert "disk, GB" in picture and "memory, MB" in picture and 'role="img"' in picture
    assert "var(--" not in plots.plain(picture)
    rows = [{"artifact": "artifacts/m.q8_0.gguf", "bytes": 10**9, "mean_kl": 0.001}]
    assert "m.q8_0.gguf" in plots.quality(rows)
    assert plots.run({"run": {}}) == ""
    assert "seconds" in plots.over_work({"cpu": [(2, 3.0), (4, 5.0)]}, "layers")


def test_what_is_no_page_is_refused(tmp_path):
    (tmp_path / "x.html").write_text("<html></html>")
    options = type("Options", (), {"against": str(tmp_path / "x.html"), "configfile": None})
    with pytest.raises(Refused, match="no page of an artifact"):
        command.of_other(tmp_path, options)
    (tmp_path / "y.html").write_text('<script type="application/json" id="report">5</script>')
    options.against = str(tmp_path / "y.html")
    with pytest.raises(Refused, match="no page of an artifact"):
        command.of_other(tmp_path, options)


def test_196_fetches_are_one_box_and_the_page_stays_small():
    def made(n):
        return {"path": f"artifacts/m.hf/{n}", "digest": f"sha256:{n:064}", "bytes": 4 * 10**9}

    fetched = [{**action("fetch_file"), "outputs": [made(n)]} for n in range(196)]
    last = action("convert", range(196))
    found = about.folded([*fetched, last])
    assert [one["rule"] for one in found] == ["fetch_file", "convert"] and found[1]["reads"] == [0]
    assert found[0]["seconds"] == 392.0 and len(found[0]["outputs"]) == 196
    assert len(shown(report(actions=found))) < 500_000


def test_a_limit_stands_beside_its_number():
    checks = {"errors": {"Q4_K": 0.01}, "error_limits": {"Q4_K": 0.02}, "first_limit": 0.5}
    text = shown(report(verification={"result": "passed", "reference": "x", "checks": checks}))
    assert re.search(r'weights in Q4_K, .*</th><td class="n">0.01</td><td>0.02<', text)
    assert "first_limit" in text


def test_the_digest_of_each_output_and_of_a_folders_sums_is_checked():
    outputs = {
        "artifacts/a": {"digest": "sha256:aa"},
        "artifacts/b c": {"digest": "tree:x", "entries": [{"path": "SHA256SUMS", "digest": "sha256:bb"}]},
    }  # fmt: skip
    said = about._check(outputs)
    assert "'aa  artifacts/a'" in said and "'bb  artifacts/b c/SHA256SUMS'" in said
    assert said.endswith("&& (cd 'artifacts/b c' && sha256sum --quiet -c SHA256SUMS)")


def test_what_is_older_than_its_model_is_marked():
    assert "Older than its model" not in shown(report())
    text = shown(report(older="m/model.safetensors has changed since"))
    assert "Older than its model</strong>: m/model.safetensors has changed since." in text
