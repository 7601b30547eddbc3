"""Two nodes with two networks each, as namespaces of this machine: which address a server's nodes find."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.root("networks between two nodes")

ROLE = """
import json, sys
from pathlib import Path
import meeting, network
from place import Place, Refused, Site
rank, said = int(sys.argv[1]), json.loads(sys.argv[2])
place, site = Place("7", rank, ("n1", "n2")), Site(Path("serve.conf"), said)
own = {"sums": "s", "versions": {}, "python": "3"}
try:
    if rank:
        table = meeting.Worker(place, site, "key", network.head_address(place, site))
        address = network.own_address(place, site)
        first, master = table.follow(own, address, 20)
    else:
        table = meeting.Head(place, site, "key")
        address = master = network.own_address(place, site)
        table.gather(address)
        table.compare(own, 20)
        first = table.ports(address)
    print(json.dumps([address, network.interface_of(address), master, first]))
except Refused as why:
    print(json.dumps(str(why)))
"""
SCONTROL = """#!/bin/sh
case "$3" in n1) address={n1} ;; n2) address=10.1.0.2 ;; esac
echo "NodeName=$3 Arch=x86_64 CoresPerSocket=1 NodeAddr=$address NodeHostName=$3 Version=22.05.8"
"""  # --oneliner of `scontrol show node`


def inside(pid, *words, **more):
    return ["nsenter", "--target", str(pid), "--net", *map(str, words)]


@pytest.fixture
def nodes():
    """The processes that hold each node's network: n1 and n2, joined by networks `one` and `other`."""
    if not (shutil.which("ip") and shutil.which("nsenter")):
        pytest.skip("namespaces need ip and nsenter (Debian: iproute2, util-linux)")
    found = [subprocess.Popen(["unshare", "--net", "sleep", "300"]) for _ in range(2)]
    first, second = (one.pid for one in found)
    try:
        own = Path("/proc/self/ns/net").readlink()
        end = time.monotonic() + 10
        while own in {Path(f"/proc/{pid}/ns/net").readlink() for pid in (first, second)}:
            assert time.monotonic() < end
            time.sleep(0.05)
        for number, name in enumerate(("one", "other"), 1):
            peer = ("peer", "name", name, "netns", second)
            call = inside(first, "ip", "link", "add", "name", name, "type", "veth", *peer)
            if subprocess.run(call, capture_output=True, check=False).returncode:
                pytest.skip("this kernel has no veth")
            for pid, last in ((first, 1), (second, 2)):
                address = f"10.{number}.0.{last}/24"
                subprocess.run(inside(pid, "ip", "addr", "add", address, "dev", name), check=True)
                subprocess.run(inside(pid, "ip", "link", "set", name, "up"), check=True)
        for pid in (first, second):
            subprocess.run(inside(pid, "ip", "link", "set", "lo", "up"), check=True)
        yield first, second
    finally:
        for one in found:
            one.kill()
            one.wait()


@pytest.fixture
def met(nodes, tmp_path):
    """met(site, seen by n1 as, seen by n2 as): what each node says, n1's name as its own machine has it."""

    def run(site, by_head, by_worker):
        started = []
        for rank, address in enumerate((by_head, by_worker)):
            folder = tmp_path / f"bin{rank}"
            folder.mkdir()
            (folder / "scontrol").write_text(SCONTROL.format(n1=address))
            (folder / "scontrol").chmod(0o755)
            words = [sys.executable, "-B", "-c", ROLE, rank, json.dumps(site)]
            environment = {
                **os.environ, "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT / "runtime/vllm"),
            }  # fmt: skip
            started.append(
                subprocess.Popen(
                    inside(nodes[rank], *words), env=environment, stdout=subprocess.PIPE, text=True
                )
            )
        return [json.loads(one.communicate(timeout=60)[0]) for one in started]

    return run


def test_the_way_to_the_other_is_found_where_a_nodes_own_name_is_loopbacks(met):
    head, worker = met({"meet_seconds": "10"}, "127.0.1.1", "10.1.0.1")
    assert head[:3] == ["10.1.0.1", "one", "10.1.0.1"]
    assert worker[:3] == ["10.1.0.2", "one", "10.1.0.1"] and head[3] == worker[3]


def test_ranks_use_the_network_that_the_site_names_wherever_nodes_are_known(met):
    head, worker = met({"meet_seconds": "10", "interface": "other"}, "10.1.0.1", "10.1.0.1")
    assert head[:3] == ["10.2.0.1", "other", "10.2.0.1"]
    assert worker[:3] == ["10.2.0.2", "other", "10.2.0.1"]


def test_a_head_that_the_others_know_as_loopback_is_refused(met):
    head, worker = met({"meet_seconds": "3"}, "127.0.1.1", "127.0.0.1")
    assert (
        "its name means 127.0.0.1 on n2, which no other node reaches; correct /etc/hosts" in worker
    )
    assert "n2: nothing heard for 3 s" in head
