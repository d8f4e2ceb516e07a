"""A Slurm cluster of this machine alone, on the loopback interface, started as root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# AuthInfo names a socket of its own: a munge that runs here already is left alone.
# A requeued job waits for its credential to expire, by default two minutes.
CONFIGURATION = """
ClusterName=dps_tf_test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SlurmdParameters=config_overrides
JobRequeue=1
KillWait=30
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")


def why_not() -> str | None:
    """Returns why no cluster can be started here, or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"Slurm is not installed: there is no {missing[0]}"
    if os.geteuid() != 0:
        return "Slurm is started by root only"
    return None


class Cluster:
    """Two processors of one node; ends with `stop`.

    Attributes:
        variables: the environment in which the commands of Slurm find this cluster.
    """

    def __init__(self) -> None:
        # Not pytest's folder: names of sockets are limited to about a hundred bytes,
        # and munge wants nobody else to write above them.
        self.folder = Path(tempfile.mkdtemp(prefix="dps_tf_slurm-", dir="/run"))
        self.variables = {**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf"}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts the daemons; returns when the node is idle."""
        self.folder.chmod(0o755)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                folder=self.folder,
                controller_port=_free_port(),
                node_port=_free_port(),
            )
        )
        self._daemon(
            *("munged", "--foreground", "--force", "--num-threads=2"),
            *(f"--socket={self.folder}/munge.socket", f"--key-file={key}"),
            *(f"--pid-file={self.folder}/munged.pid",),
            *(f"--log-file={self.folder}/munged.log",),
            *(f"--seed-file={self.folder}/munged.seed",),
        )
        wait_until(lambda: (self.folder / "munge.socket").exists(), 30, self.told)
        self._daemon("slurmctld", "-D", "-c", "-f", f"{self.folder}/slurm.conf")
        self._daemon("slurmd", "-D", "-f", f"{self.folder}/slurm.conf")
        wait_until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t"), 60, self.told)

    def _daemon(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            daemon = subprocess.Popen(
                command, env=self.variables, stdout=out, stderr=subprocess.STDOUT
            )
        self._daemons.append(daemon)

    def run(self, *command: str) -> str:
        """Returns what a command of Slurm prints; its errors too."""
        done = subprocess.run(
            command,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr

    def told(self) -> str:
        """Returns the ends of the daemons' logs."""
        logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs)

    def stop(self) -> None:
        """Cancels every job and ends the daemons."""
        if len(self._daemons) > 1:
            self.run("scancel", "--user=root")
            deadline = time.monotonic() + 40
            while self.run("squeue", "-h").strip() and time.monotonic() < deadline:
                time.sleep(0.5)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(
    is_so: Callable[[], object],
    seconds: float,
    told: Callable[[], str],
    pause: float = 0.25,
) -> None:
    """Returns when something is so; AssertionError with what was told otherwise."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds} s\n{told()}"
        time.sleep(pause)
