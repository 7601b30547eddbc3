"""A real SLURM on this machine: munged, slurmctld and two slurmd, with ports and folders of its own.

    with Slurm(folder) as cluster: cluster.environment; cluster.call("squeue", "-h")

Debian's packages slurmctld, slurmd, slurm-client and munge, run by whoever runs the tests; no systemd, no
cgroups.  Node `gpu1` has eight fake GPUs.  A job that uses more memory than it asked for is killed after
two seconds.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
# nodes of a partition, MB, seconds, and seconds from SIGTERM to SIGKILL
USUAL = {"cpu": "cpu1", "memory": 64_000, "min_job_age": 300, "kill_wait": 2, "cpu_gpus": ""}
CONF = """
ClusterName=ingot
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={sockets}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,defer_batch=0
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ReturnToService=2
MinJobAge={min_job_age}
KillWait={kill_wait}
InactiveLimit=0
GresTypes=gpu
NodeName=DEFAULT CPUs=8 RealMemory={memory} State=UNKNOWN
NodeName=cpu1 NodeHostname={host} NodeAddr=127.0.0.1 Port={one}{cpu_gpus}
NodeName=gpu1 NodeHostname={host} NodeAddr=127.0.0.1 Port={two} Gres=gpu:h100:8
PartitionName=cpu Nodes={cpu} Default=YES MaxTime=1:00:00 DefMemPerCPU=500 State=UP
PartitionName=gpu Nodes=gpu1 MaxTime=2:00:00 DefMemPerCPU=500 State=UP
"""


def missing() -> str:
    """What is not installed here, or empty."""
    return ", ".join(name for name in PROGRAMS if not shutil.which(name))


def skip_where_missing() -> None:
    import pytest  # benches have none

    if lacking := missing():
        pytest.skip(f"SLURM needs {lacking} (Debian: slurmctld slurmd slurm-client munge)")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Slurm:
    """One cluster below `folder`, an absolute path that is new.

    The nodes see another, empty folder at `hidden`; `how` is in place of USUAL.
    """

    def __init__(self, folder: Path, hidden: Path | None = None, **how):
        self.folder, self.hidden, self.how = folder, hidden, {**USUAL, **how}
        self.sockets = tempfile.TemporaryDirectory(
            prefix="slurm"
        )  # whose paths may have 107 letters
        Path(self.sockets.name).chmod(0o755)
        self.nodes: dict[str, subprocess.Popen] = {}
        self.conf = folder / "slurm.conf"
        self.processes: list[subprocess.Popen] = []

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        folder, host = self.folder, socket.gethostname().split(".")[0]
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        (folder / "state").mkdir()
        port, one, two = free_ports(3)
        ports = {"port": port, "one": one, "two": two, "user": pwd.getpwuid(os.geteuid()).pw_name}
        ports["sockets"] = sockets = Path(self.sockets.name)
        self.conf.write_text(CONF.format(host=host, folder=folder, **ports, **self.how))
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        gpus = [folder / f"gpu{number}" for number in range(8)]
        for gpu in gpus:
            gpu.symlink_to("/dev/null")
        (folder / "gres.conf").write_text(
            "".join(
                f"NodeName={node} Name=gpu Type=h100 File={folder}/gpu[0-7]\n"
                for node in (("cpu1", "gpu1") if self.how["cpu_gpus"] else ("gpu1",))
            )
        )
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        # the plugin starts each step with few of SLURM's variables, SLURM_CONF not among them
        shim = folder / "bin/srun"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nSLURM_CONF={self.conf} exec {shutil.which("srun")} "$@"\n')
        shim.chmod(0o755)
        self.start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={sockets}/munge.sock",
            f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        self.wait(lambda: (sockets / "munge.sock").exists(), "munged")
        self.controller = self.start("slurmctld", "-c", "-D", "-f", self.conf)
        for node in ("cpu1", "gpu1"):
            self.node(node)
        states = ("sinfo", "-h", "-N", "-o", "%T")
        self.wait(lambda: set(self.call(*states).split()) == {"idle"}, "the nodes")

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.SubprocessError):
            self.call("scancel", "--state=RUNNING", "--state=PENDING", f"--user={os.getuid()}")
            end = time.monotonic() + 15  # a job of a failed test would outlive its cluster
            while self.jobs() and time.monotonic() < end:
                time.sleep(0.2)
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait(10)
        shutil.rmtree(self.sockets.name, ignore_errors=True)
        self.sockets.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def node(self, name: str) -> None:
        """Start a node, in a mount namespace of its own where it is not to see a folder."""
        words = ["slurmd", "-D", "-f", self.conf, "-N", name]
        if self.hidden:
            hide = f'mount -t tmpfs none {self.hidden} && exec {shutil.which("slurmd")} "$@"'
            # without root in a user namespace, in which it stays who it is: munge says it to the controller
            own = [] if os.geteuid() == 0 else ["-U", "--map-current-user", "--keep-caps"]
            words = ["unshare", *own, "-m", "sh", "-c", hide, *words]
        self.nodes[name] = self.start(*words)

    def kill(self, name: str) -> None:
        """A node goes down with all that runs there, and stays away."""
        self.nodes[name].kill()
        # first, or what its steps say of their end is taken for a failure of their own
        self.call("scontrol", "update", f"nodename={name}", "state=down", "reason=killed")
        for process in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                found = process.read_bytes()
                if (
                    f"SLURMD_NODENAME={name}\0".encode() in found
                    and str(self.conf).encode() in found
                ):
                    os.kill(int(process.parent.name), signal.SIGKILL)

    def start(self, program: str, *words) -> subprocess.Popen:
        with (self.folder / f"{program}.out").open("ab") as log:
            process = subprocess.Popen(
                [shutil.which(program), *map(str, words)],
                env={**os.environ, "SLURM_CONF": str(self.conf)},
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def call(self, *words) -> str:
        done = subprocess.run(
            list(map(str, words)), env={**os.environ, **self.environment}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.stdout

    def jobs(self) -> list[str]:
        """The ids of the jobs that wait or run."""
        return self.call("squeue", "-h", "-o", "%i").split()

    def submitted(self) -> int:
        """How many jobs this cluster has been given in all."""
        shown = self.call("scontrol", "show", "config")
        return int(re.search(r"NEXT_JOB_ID\s*= (\d+)", shown)[1]) - 1

    def wait(self, until, what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, (
                f"SLURM: {what}: {seconds} s are over; {self.call('sinfo')}"
            )
            time.sleep(0.1)


DECLARED = """
ClusterName=declared
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
EnforcePartLimits=ALL
MailProg=/bin/true
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=96 \
RealMemory=1500000 Gres=gpu:h100:{gpus} State=IDLE
PartitionName=h100 Nodes=n[1-{nodes}] Default=YES MaxTime=3-0 State=UP
"""


@contextlib.contextmanager
def declared(folder: Path, nodes: int, gpus: int):
    """The environment of a controller alone, which knows of nodes that there are not: for --test-only."""
    (folder / "state").mkdir(parents=True)
    port, first = free_ports(2)
    conf = folder / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    user = pwd.getpwuid(os.geteuid()).pw_name
    conf.write_text(DECLARED.format(**locals(), last=first + nodes - 1))
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    with (folder / "out").open("w") as log:
        words = [shutil.which("slurmctld"), "-c", "-D", "-f", str(conf)]
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 30
        ask = ["sinfo", "-h"]
        while b"idle" not in subprocess.run(ask, env=environment, capture_output=True).stdout:
            assert time.monotonic() < end, (folder / "out").read_text()
            time.sleep(0.2)
        yield environment
    finally:
        process.terminate()
        process.wait(20)
