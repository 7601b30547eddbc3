"""One node of the server: check, meet the others, start vLLM, answer right, and end cleanly.

`serve.sbatch` starts it once per node; `./serve` starts it on this machine.  Whatever ends one node
ends the job, with the reason in one line on standard output.
"""

import argparse
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import asking
import checks
import meeting
import network
import process
import ray_cluster

from place import (
    FOLDER,
    Place,
    Refused,
    Site,
    find,
    port_blocks,
    read_bundle,
    read_site,
    state_folder,
)

EACH = 10  # seconds between lines of progress
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class Stopped(Exception):
    """By SIGTERM, as of scancel or the time limit; by Ctrl-C; by a terminal that was closed."""


class Node:
    """All that this node has started, so that it can be ended in any state."""

    def __init__(self, place: Place, site: Site, bundle: dict, options: argparse.Namespace):
        self.place, self.site, self.bundle, self.options = place, site, bundle, options
        self.table: meeting.Head | meeting.Worker | None = None
        self.server: process.Server | None = None  # vLLM; on a worker of Ray's, Ray
        self.ray: process.Server | None = None  # on the head
        self.scratch: Path | None = None
        self.key = os.environ.pop("INGOT_SERVE_KEY", "")
        self.state = state_folder(site) / place.job

    def say(self, text: str) -> None:
        who = f"{self.place.name}: " if self.place.nodes > 1 else ""
        print(f"{time.strftime('%H:%M:%S')} {who}{text}", flush=True)

    def run(self) -> None:
        layout, place = self.bundle["layout"], self.place
        if place.nodes != layout["nodes"]:
            raise Refused(f"{place.nodes} nodes, expected {layout['nodes']}; start it by ./submit")
        if place.nodes > 1 and not self.key:
            raise Refused(
                "INGOT_SERVE_KEY: missing, expected the key that serve.sbatch makes; start it by ./submit"
            )
        self.key = self.key or secrets.token_urlsafe(24)
        self.meet()
        try:
            address = network.own_address(place, self.site)
            own = self.checked()
        except Refused as why:
            self.refuse(str(why))
        first, master = self.agreed(own, address)
        port = self.options.port or self.site.number("port", first + 1)
        if not place.rank:
            network.stop_on_unusable(address, port, "leave port out", f" on {place.name}")
        self.state.mkdir(parents=True, exist_ok=True)
        environment = self.environment(address, first + 4)
        if self.bundle["executor"] == "ray":
            environment |= ray_cluster.environment(self.key, master, first + 2)
            self.start_ray(address, master, first + 2, environment)
        if not self.server:
            words = self.words(address, port, master, first + 2)
            self.server = self.started("vLLM", words, environment)
        if place.rank:
            self.watch(f"started {self.server.name}, node {place.rank}")
        else:
            self.lead(f"http://{address}:{port}")

    def started(self, name: str, words: list[str], environment: dict[str, str]) -> process.Server:
        log = self.state / f"{name.lower()}-{self.place.rank}.log"
        return process.Server(name, words, environment, log, self.private())

    def start_ray(self, address: str, head: str, port: int, environment: dict[str, str]) -> None:
        """On a worker Ray is all that we start: it starts vLLM's ranks."""
        rank, gpus = self.place.rank, self.bundle["layout"]["gpus_per_node"]
        words = ray_cluster.words(rank, address, head, port, gpus, str(self.scratch))
        if rank:
            self.server = self.started("Ray", words, environment)
            return
        self.ray = self.started("Ray", words, environment)
        seconds = self.site.number("meet_seconds", meeting.MEET_SECONDS)
        command = [sys.executable, ray_cluster.__file__, str(self.place.nodes), str(seconds)]
        with (self.state / "ray-count.log").open("w") as log:
            counting = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            while counting.poll() is None:
                self.alive()
                time.sleep(0.2)
        finally:
            counting.kill()
            said = counting.communicate()[0]
        if counting.returncode:
            raise Refused(f"Ray: its nodes cannot be counted; its words: {log.name}")
        if missing := json.loads(said.splitlines()[-1]):
            names = ", ".join(self.place.names[rank] for rank in missing)
            raise Refused(
                f"{names}: not in Ray's cluster after {seconds} s; its words: {self.ray.log}"
            )
        count = gpus * self.place.nodes
        self.say(f"Ray has all {self.place.nodes} nodes and {count} GPUs")

    def meet(self) -> None:
        """Find each other before anything that takes long, so that all check at once."""
        layout, place = self.bundle["layout"], self.place
        if place.rank:
            head = network.head_address(place, self.site)
            self.table = meeting.Worker(place, self.site, self.key, head)
            return
        said = (
            f"{self.bundle['model']}: tensor parallel size {layout['tp']}, {layout['pp']} stages, "
        )
        self.say(f"{said}{place.nodes} nodes")
        if place.nodes > 1:
            self.table = meeting.Head(place, self.site, self.key)
            self.table.gather(network.own_address(place, self.site))
            self.say(f"all {place.nodes} nodes are here; checking files, versions, GPUs")

    def checked(self) -> dict:
        """What all nodes compare."""
        checks.shared_memory(self.bundle)
        self.scratch = checks.scratch(self.place, self.site)
        return {
            "gpus": checks.gpus(self.bundle),
            "versions": checks.versions(self.bundle),
            "python": sys.version.split()[0],
            "sums": checks.files(self.place, self.site, self.bundle, self.say),
        }

    def agreed(self, own: dict, address: str) -> tuple[int, str]:
        """The first port of the range, and the address by which ranks find each other."""
        if self.place.nodes == 1:
            for first in port_blocks(self.place.number):
                if network.all_free(address, first, meeting.BLOCK):
                    return first, address
            raise Refused(f"{address}: no range of ports is free, expected one from 12000 to 32000")
        seconds = self.bundle["start_seconds"] + self.reading() / self.place.nodes
        if self.place.rank:
            return self.table.follow(own, address, seconds)
        self.table.compare(own, seconds)
        first = self.table.ports(address)
        self.say(f"all {self.place.nodes} nodes are alike; ports from {first}")
        return first, address

    def reading(self) -> float:
        """Seconds that the weights take from the disk, as the site knows it."""
        rate = self.site.number("read_mb_s", self.bundle["read_mb_s"])
        return sum(self.bundle["weights"].values()) / rate / 1e6

    def words(self, address: str, port: int, master: str, master_port: int) -> list[str]:
        """vLLM's command."""
        found = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(FOLDER / "model")]
        found += [*self.bundle["arguments"], "--host", address, "--port", str(port)]
        if names := self.bundle.get("adapters"):
            found += ["--lora-modules", *(f"{name}={FOLDER / 'adapters' / name}" for name in names)]
        if self.place.nodes > 1 and self.bundle["executor"] == "mp":
            found += ["--nnodes", str(self.place.nodes), "--node-rank", str(self.place.rank)]
            found += ["--master-addr", master, "--master-port", str(master_port)]
            found += ["--headless"] if self.place.rank else []
        return found

    def environment(self, address: str, first: int) -> dict[str, str]:
        name = network.interface_of(address)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ingot-serve")
        return {
            **self.threads(), **os.environ, **QUIET, **self.bundle["environment"],
            "VLLM_API_KEY": self.key,
            "VLLM_HOST_IP": address, "NCCL_SOCKET_IFNAME": f"={name}", "GLOO_SOCKET_IFNAME": name,
            "VLLM_PORT": str(first), "TMPDIR": str(self.scratch), "VLLM_RPC_BASE_PATH": str(self.scratch),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),  # not anew in each TMPDIR
        }  # fmt: skip

    def threads(self) -> dict[str, str]:
        """Of unbound ranks on CPUs: the job's between them, or each would take every core that it sees."""
        ranks = self.bundle["environment"].get("VLLM_CPU_OMP_THREADS_BIND", "").count("nobind")
        cpus = int(os.environ.get("SLURM_CPUS_PER_TASK") or 0)
        return {"OMP_NUM_THREADS": str(max(1, cpus // ranks))} if ranks and cpus else {}

    # The head

    def lead(self, url: str) -> None:
        """Wait until it answers right, say how to reach it, and watch."""
        self.publish(url, "loading")
        began = said = time.monotonic()
        total = sum(self.bundle["weights"].values())
        limit = self.bundle["start_seconds"] + self.reading()
        while not (self.server.kv_tokens and asking.healthy(url)):  # else another's server answers
            self.alive()
            now = time.monotonic()
            if now - began > limit:
                raise Refused(
                    f"not healthy after {limit:.0f} s, planned for {total / 1e9:.1f} GB; "
                    f"set read_mb_s in the site file; vLLM's words: {self.server.log}"
                )
            if now - said >= EACH:
                said = now
                self.say(f"loading: {self.progress(total, now - began)}")
            time.sleep(0.5)
        known = json.loads((FOLDER / "smoke.json").read_bytes())
        self.hold_cache()
        try:
            right = "; ".join(asking.each(url, self.key, known))
        except Refused as why:
            self.alive(patience=5)  # a dying server answers 500 first
            raise Refused(f"{why}; vLLM's words: {self.server.log}") from None
        for one in (self.server, self.ray):
            if one:
                one.forget()
        if self.table:
            self.table.tell(ready=True)
        self.publish(url, "ready")
        self.say(f"ready after {time.monotonic() - began:.0f} s: {right}")
        self.say(
            f"{url}/v1, model {self.bundle['model']}, key in {self.state}/key; ./connect says how"
        )
        self.watch()

    def progress(self, total: int, seconds: float) -> str:
        """In bytes, where vLLM says how many of the files it has read."""
        done, files = self.server.shards
        if not files:
            return f"{seconds:.0f} s, {total / 1e9:.2f} GB to read"
        read = total * done / files
        rate = read / max(seconds, 1)
        left = (total - read) / rate if rate else 0
        return f"{read / 1e9:.2f} of {total / 1e9:.2f} GB, {rate / 1e9:.2f} GB/s, {left:.0f} s left"

    def hold_cache(self) -> None:
        """The server's own count of tokens in its KV cache, beside the plan's."""
        found, planned = self.server.kv_tokens, self.bundle["kv_tokens"]
        if self.bundle["kv_exact"] and found != planned:
            log = self.server.log
            raise Refused(f"KV cache: {found:,} tokens, expected the plan's {planned:,}; see {log}")
        self.say(f"KV cache: {found:,} tokens, planned {planned:,}")

    def publish(self, url: str, phase: str) -> None:
        """What ./status, ./smoke and ./connect read; for the user alone."""
        self.state.chmod(0o700)
        texts = {
            "key": self.key,
            "header": f"Authorization: Bearer {self.key}\n",  # curl -H @header: not in its arguments
            "state.json": json.dumps(
                {"url": url, "phase": phase, "job": self.place.job, "node": self.place.names[0],
                 "bundle": str(FOLDER), "model": self.bundle["model"]}
            ),
        }  # fmt: skip
        for name, text in texts.items():
            partial = self.state / f".{name}"
            partial.touch(mode=0o600)
            partial.write_text(text)
            partial.rename(self.state / name)

    # All

    def watch(self, text: str = "") -> None:
        if text:
            self.say(text)
        while True:
            self.alive()
            time.sleep(0.5)

    def alive(self, patience: float = 0) -> None:
        """Refused when a part of the job has ended, or does within `patience` seconds."""
        end = time.monotonic() + patience
        ours = [one for one in (self.ray, self.server) if one]
        while time.monotonic() < end and not any(one.ended() for one in ours):
            time.sleep(0.1)
        for one in ours:
            one.left.look(every=1)
            if why := one.ended():
                self.refuse(why)
        if self.place.rank:
            word = self.table.word()
            if "ready" in word:
                self.server.forget()
            elif word:
                raise Refused(self.lost() if "lost" in word else "")
        elif self.table and (why := self.table.ended()):
            raise Refused(why)

    def refuse(self, why: str) -> None:
        """End this node.  The head says why, for all."""
        if self.place.rank and self.table.refuse(why):
            raise Refused("")
        raise Refused(why)

    def stopped(self, number: int) -> str:
        """Why this signal came; empty where another node says it."""
        if self.place.rank:
            while self.table and (word := self.table.word()):
                if "stop" in word:
                    return ""
                if "lost" in word:
                    return self.lost()
            return ""
        if self.table and (why := self.table.ended(patience=0.3)):
            return f"error: {why}"
        return "stopped: the job's time is over" if self.place.over() else by(number)

    def lost(self) -> str:
        return f"{self.place.names[0]}: the head ended without a word, or is unreachable"

    def private(self) -> list[Path]:
        """What nobody may find once the server has ended."""
        return [self.scratch, *([] if self.place.rank else secret_files(self.state))]

    def close(self, stopped: bool) -> None:
        for one in (self.server, self.ray):
            if one:
                one.stop()
        if self.table:
            self.table.close(stopped)
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
        if not self.place.rank:
            forget(self.state)


def secret_files(state: Path) -> list[Path]:
    """What nobody may find once the server has ended; first what leads to the others."""
    return [state / name for name in ("state.json", "key", "header")]


def forget(state: Path) -> None:
    for path in secret_files(state):
        path.unlink(missing_ok=True)


def stop(number: int, _) -> None:
    for one in ENDS:
        signal.signal(one, signal.SIG_IGN)  # the first one ends it
    raise Stopped(number)


def by(number: int) -> str:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"stopped by {name}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./serve", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="of the server; default: a free one")
    parser.add_argument("--forget", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN if options.forget else stop)
    node, stopped = None, False
    try:
        place = find()
        if options.forget:  # by serve.sbatch, when its step has ended by whatever
            forget(state_folder(read_site()) / os.environ["SLURM_JOB_ID"])
            return 0
        if options.port:
            network.stop_on_no_port(options.port)
        node = Node(place, read_site(), read_bundle(), options)
        node.run()
    except (Refused, OSError, ValueError, KeyError, http.client.HTTPException) as why:
        known = isinstance(why, Refused)
        if text := str(why) if known else f"{type(why).__name__}: {why}":
            if node and node.place.rank and node.table and not known:
                node.table.refuse(text)
            print(
                f"error: {text}" if node is None else f"{node.place.name}: error: {text}",
                flush=True,
            )
        return 1
    except Stopped as why:
        stopped, number = True, why.args[0]
        if text := node.stopped(number) if node else by(number):
            print(text, flush=True)
        return 128 + number
    finally:
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        if node is not None:
            node.close(stopped)


if __name__ == "__main__":
    sys.exit(main())
