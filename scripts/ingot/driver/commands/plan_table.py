"""What `ingot plan` prints."""

from collections.abc import Iterator

from ingot.driver.forecast.schedule import count_of, duration, memory_of, size
from ingot.driver.toolchains import toolchains

MOST_GPUS = 16  # of the layouts that are shown, unless none fits
MANY = 4  # fetches from which on they are one line


def lines(found: dict) -> Iterator[str]:
    if any(found["build"][key] for key in ("jobs", "restored", "up_to_date")):
        yield from of_build(found["build"])
    for one in found["serving"]:
        yield from of_serving(one)


def of_build(build: dict) -> Iterator[str]:
    yield from (f"{path}: up to date" for path in build["up_to_date"])
    yield from (f"{path}: restored from the store" for path in build["restored"])
    if build["jobs"]:
        yield f"{'starts':>9}{'takes':>9}{'memory':>10}{'disk':>10}{'download':>10}  job"
    for row in folded(build["jobs"]):
        sizes = [size(row[key]) if row[key] else "-" for key in ("memory", "disk", "download")]
        times = [duration(row[key]) for key in ("starts", "seconds")]
        yield (
            "".join(f"{x:>9}" for x in times)
            + "".join(f"{x:>10}" for x in sizes)
            + f"  {row['name']}"
        )
    gpus = [f"{_gpus(row['gpus'])} for {row['outputs'][0]}" for row in build["jobs"] if row["gpus"]]
    gpu = ", ".join(gpus) or "no GPU"
    everything, rolling = build["keep"]["all"], build["keep"]["targets"]
    yield (
        f"\ntotal, on {build['cores']} cores: {duration(everything['seconds'])}, "
        f"{size(everything['memory'])} of memory, {gpu}, {size(everything['download'])} of downloads"
    )
    for way, words in ((everything, "keeping all"), (rolling, "--config keep=targets")):
        yield f"disk, {words}: peak {size(way['disk'])}, {size(way['kept'])} in the end"
    if most := build["stream"]["disk"]:
        reads = build["stream"]["reads"]
        times = f", and the weights are fetched {reads} times" if reads > 1 else ""
        yield f"disk, by `ingot stream`: at most {size(most)}{times}"
    error = build["error"]
    if error["past_jobs"]:
        past = error["past_jobs"]
        many = f"{past} past jobs, each forecast from the others, are"
        yield (
            f"{many if past > 1 else '1 past job, forecast from others, is'} off by a median of "
            f"{error['seconds']:.2f}x in seconds, {error['memory']:.2f}x in memory, "
            f"{error['disk']:.2f}x in disk"
        )
    elif build["jobs"] and not error["known"]:
        yield "no job of these kinds is on record yet: the figures are for a machine with 2 cores"


def _gpus(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"


def folded(rows: list[dict]) -> list[dict]:
    """The jobs by their start, many fetches as one line."""
    files = [row for row in rows if row["rule"] == "fetch_file"]
    files = files if len(files) >= MANY else []
    found = []
    for row in rows:
        there = row["rule"] == "toolchain" and not row["download"]
        if row not in files and not there:
            more = " ..." if row["outputs"][2:] else ""
            names = ", ".join(map(toolchains.shown, row["outputs"][:2]))
            found.append({**row, "name": names + more})
    if files:
        whole = {key: sum(row[key] for row in files) for key in ("disk", "download")}
        whole["memory"] = max(row["memory"] for row in files)
        whole["starts"] = min(row["starts"] for row in files)
        whole["seconds"] = max(row["starts"] + row["seconds"] for row in files) - whole["starts"]
        found.append({**whole, "name": f"{len(files)} files of the checkpoint"})
    return sorted(found, key=lambda row: row["starts"])


def of_serving(one: dict) -> Iterator[str]:
    needs, room, context = one["needs"], one["gpu_gib"], one["context"]
    yield (
        f"\n{one['model']}: {count_of(one['parameters'])}, weights {size(needs['weights'])}; "
        f"KV cache {one['kv_per_token'] / 1024:.4g} KiB per token, "
        f"{memory_of(needs['cache'])} for {context} tokens"
    )
    yield (
        f"GPUs of {room:g} GiB by bytes alone: {needs['gpus_for_weights']} for the weights, "
        f"{needs['gpus_for_all']} with that cache"
    )
    if one["note"]:
        yield one["note"]
    if not one["layouts"]:
        yield f"it is served whole: `ingot fit {one['model']}` says which form of it fits what"
        return
    first = next(iter(one["layouts"].values()))  # of the server that the target is for
    for engine, rows in one["layouts"].items():
        yield f"\n{engine:20} weights/GPU  KV cache/GPU   tokens that fit in {room:g} GiB per GPU"
        few = [row for row in rows if row["gpus"] <= MOST_GPUS]
        shown = few if any(row["fits"] for row in few) else rows
        for row in sorted(shown, key=lambda row: (row["gpus"], row["pp"])):
            yield of_layout(row, one, row in first and asked(row, one))
    tight = [row for row in first if asked(row, one)]
    if tight and not tight[0]["fits"]:
        best = next((row["tp"] for row in first if row["fits"]), None)
        hint = f"the smallest size that does is tp{best}" if best else "no size does: see above"
        yield f"\ntp{one['asked_tp']} does not hold {context} tokens; {hint}"


def asked(row: dict, one: dict) -> bool:
    return (row["tp"], row["pp"]) == (one["asked_tp"], one["asked_pp"])


def of_layout(row: dict, one: dict, asked: bool) -> str:
    stages = f" pp{row['pp']}" if row["pp"] > 1 else ""
    name = f"tp{row['tp']}{stages}"
    start = f"  {name:9}{row['gpus']:>3} GPUs"
    if row["wrong"]:
        return f"{start}  not possible: {row['wrong']}"
    whose = "asked for" if one["context_asked"] else "of the model's context"
    verdict = "" if row["fits"] else f"  not the {one['context']} {whose}"
    mark = "  <- this target" if asked else ""
    weights, cache = memory_of(row["weights"]), row["kv_per_token"] / 1024
    return f"{start}{weights:>14}{cache:>8.1f} KiB/tok{row['tokens']:>16}{verdict}{mark}"
