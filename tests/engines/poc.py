"""A FLARE federation of separate processes with mutual TLS on loopback, for tests and benchmarks.

What `nvflare poc` does, on free ports and in a folder of its own: provision, start, stop. It ends only what it started,
also when the test's own process is killed: this file run as a script waits for that and then stops what is left.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

__all__ = ["ADMIN", "SERVER", "Federation", "federation"]

ADMIN, SERVER = "admin@nvidia.com", "localhost"  # a server of this name listens on 127.0.0.1 alone
_BUILDERS = {
    "workspace.WorkspaceBuilder": {"template_file": ["master_template.yml"]},
    "static_file.StaticFileBuilder": {"config_folder": "config"},
    "cert.CertBuilder": {},
    "signature.SignatureBuilder": {},
}


@contextmanager
def federation(folder: Path, sites: Sequence[str], *, he: bool = False) -> Iterator["Federation"]:
    """Provision a server and sites under ``folder``, start them, and end every process on the way out.

    Args:
        folder: where all of it lies; must be new.
        sites: names of the sites.
        he: also make the keys of homomorphic encryption.
    """
    found = Federation(folder, tuple(sites))
    found.provision(he)
    with _watched(folder):
        try:
            for name in (SERVER, *sites):
                found.start(name)
            found.wait_for(*sites)
            yield found
        finally:
            found.stop()


@dataclass
class Federation:
    """The kits and processes of one federation."""

    folder: Path
    sites: tuple[str, ...]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def kit(self, name: str) -> Path:
        """Return the startup kit of the server, a site or the admin; it is also its workspace."""
        return self.folder / "ws" / "fedskew" / "prod_00" / name

    @property
    def env(self) -> dict[str, str]:
        """Environment of its processes: nothing is read from or written to the user's home."""
        own = {"HOME": str(self.folder / "home"), "NVFLARE_POC_WORKSPACE": str(self.folder / "ws")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        paths = os.pathsep.join(path for path in (os.environ.get("PYTHONPATH"),) if path)
        return {**os.environ, **own, "PATH": path, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}

    def provision(self, he: bool) -> None:
        """Make certificates and kits, as `nvflare provision` does for hospitals."""
        (self.folder / "home").mkdir(parents=True)
        learn, admin = _free_ports(2)
        server = {"name": SERVER, "type": "server", "org": "nvidia", "default_host": "localhost"}
        people = [
            server | {"fed_learn_port": learn, "admin_port": admin},
            {"name": ADMIN, "type": "admin", "org": "nvidia", "role": "project_admin"},
            *({"name": site, "type": "client", "org": "nvidia"} for site in self.sites),
        ]
        builders = [{"path": f"nvflare.lighter.impl.{path}", "args": args} for path, args in _BUILDERS.items()]
        if he:
            ckks = {"poly_modulus_degree": 8192, "coeff_mod_bit_sizes": [60, 40, 40], "scale_bits": 40}
            builders.insert(2, {"path": "nvflare.lighter.impl.he.HEBuilder", "args": ckks | {"scheme": "CKKS"}})
        project = {"api_version": 3, "name": "fedskew", "description": "loopback"}
        path = self.folder / "project.yml"
        path.write_text(yaml.safe_dump(project | {"participants": people, "builders": builders}))
        command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(path), "-w", str(self.folder / "ws")]
        subprocess.run(command, env=self.env, check=True, capture_output=True, timeout=60)
        self._store_beside_kits()

    def _store_beside_kits(self) -> None:
        """Keep jobs and snapshots here; the kits' default is a folder that all federations of a machine share."""
        local = self.kit(SERVER) / "local"
        resources = json.loads((local / "resources.json.default").read_text())
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(self.folder / "snapshots")
        for component in resources["components"]:
            if component["id"] == "job_manager":
                component["args"]["uri_root"] = str(self.folder / "jobs")
        (local / "resources.json.default").write_text(json.dumps(resources, indent=2))

    def start(self, name: str) -> None:
        """Start the server or a site, in a session of its own."""
        kit = self.kit(name)
        with (kit / "console.log").open("ab") as console:
            self.running[name] = subprocess.Popen(
                ["bash", str(kit / "startup" / "sub_start.sh"), "--once"],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, *sites: str, timeout: float = 60.0) -> None:
        """Wait until these sites are registered with the server."""
        until = time.monotonic() + timeout
        missing = set(sites)
        while missing:
            log = self.kit(SERVER) / "log.txt"
            text = log.read_text(errors="replace") if log.exists() else ""
            missing = {site for site in missing if f"New client {site}@" not in text}
            if missing and time.monotonic() > until:
                raise TimeoutError(f"{sorted(missing)} not registered:\n{self.console(SERVER)}{self.console(*missing)}")
            time.sleep(0.1)

    def console(self, *names: str) -> str:
        """Return the last lines these have printed, for a failing test to show."""
        files = [self.kit(name) / "console.log" for name in names]
        return "".join(path.read_text(errors="replace")[-3000:] for path in files if path.exists())

    def job_processes(self, name: str) -> list[psutil.Process]:
        """Return the processes of running jobs at the server or a site."""
        kind = "runner_process" if name == SERVER else "worker_process"
        return [process for process, command in self._processes(self.kit(name)) if kind in command]

    def kill_job(self, name: str) -> None:
        """SIGKILL the processes of running jobs at the server or a site; its parent lives on."""
        for process in self.job_processes(name):
            process.kill()

    def kill(self, name: str) -> None:
        """SIGKILL the server or a site, parent first, with all its jobs."""
        self.running.pop(name).send_signal(signal.SIGKILL)
        for process, _ in self._processes(self.kit(name)):
            process.kill()

    def stop(self) -> None:
        """End every process that works in this folder."""
        until = time.monotonic() + 10
        while (found := [process for process, _ in self._processes(self.folder)]) and time.monotonic() < until:
            for process in found:  # asked to end, FLARE takes seconds; one that is just starting is found next time
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=1)
        for process in self.running.values():
            process.wait(timeout=5)
        assert not self._processes(self.folder), self._processes(self.folder)

    def _processes(self, folder: Path) -> list[tuple[psutil.Process, str]]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if any(word == str(folder) or word.startswith(f"{folder}/") for word in command):
                found.append((process, " ".join(command)))
        return [(process, command) for process, command in found if process.pid != os.getpid()]


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    """Have a process of its own read from a pipe: it ends with this block, or with this process however that ends."""
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True) as watcher:
        assert watcher.stdin is not None
        watcher.stdin.write(f"{folder}\n".encode())
        watcher.stdin.flush()
        yield


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


if __name__ == "__main__":
    watched = Path(sys.stdin.readline().rstrip("\n"))
    sys.stdin.read()
    Federation(watched, ()).stop()
