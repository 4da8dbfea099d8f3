"""A Flower deployment on this machine: a SuperLink and a SuperNode a site, on free ports, stopped even after a failure.

With TLS and node authentication unless ``is_secure`` is False. Every process has its own session and FLWR_HOME, so that
nothing of the user's Flower is touched, and only processes started here (and their children) are ended.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Deployment", "free_port", "write_certificates", "write_node_key"]

BIN = Path(sys.executable).parent  # not resolved: the environment's own scripts
T = TypeVar("T")
NAME = "study"  # of the connection in config.toml


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def write_certificates(folder: Path) -> None:
    """Write ca.crt, server.pem and server.key of a server on 127.0.0.1, good for one day."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    issued = _builder(root, root, authority).add_extension(x509.BasicConstraints(True, None), critical=True)
    (folder / "ca.crt").write_bytes(_pem(issued.sign(authority, hashes.SHA384())))
    issued = _builder(root, name, server).add_extension(names, critical=False)
    (folder / "server.pem").write_bytes(_pem(issued.sign(authority, hashes.SHA384())))
    form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(server.private_bytes(serialization.Encoding.PEM, form, none))
    (folder / "server.key").chmod(0o600)


def write_node_key(path: Path) -> None:
    """Write a site's key pair as ``ssh-keygen -t ecdsa -b 384`` does: ``path`` and ``path``.pub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key, none = ec.generate_private_key(ec.SECP384R1()), serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, none))
    path.chmod(0o600)
    form = serialization.PublicFormat.OpenSSH
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, form))


class Deployment:
    """A running SuperLink with its SuperNodes; a context manager.

    Args:
        folder: where everything is written: certificates, keys, logs, RUN folders (``runs``).
        sites: site to the text of its ``--node-config``.
        is_secure: with TLS and node authentication.
        path: folders for PYTHONPATH, for tests that bring their own app.
        database: keep the SuperLink's state in a file, so that it outlives a restart.
    """

    def __init__(
        self,
        folder: Path,
        sites: Mapping[str, str],
        *,
        is_secure: bool = True,
        path: tuple[Path, ...] = (),
        database: bool = False,
    ) -> None:
        self.folder, self.sites, self.is_secure, self.database = folder, dict(sites), is_secure, database
        self.port, self.runs = free_port(), folder / "runs"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._logged: dict[str, int] = {}  # characters that a log had when its process was started
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FLWR_")},
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(str(part) for part in path),
            "OMP_NUM_THREADS": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "FEDSKEW_RUNS": str(self.runs),
        }

    def __enter__(self) -> Self:
        """Start the SuperLink, register the nodes' keys, start the SuperNodes."""
        try:
            home = self._home("server")
            connection = {"address": f"127.0.0.1:{self.port}"} | self._pick(
                {"root-certificates": str(self.certificates / "ca.crt")}, {"insecure": True}
            )
            lines = [f"{key} = {json.dumps(value)}" for key, value in connection.items()]
            text = "\n".join([f'[superlink]\ndefault = "{NAME}"', f"[superlink.{NAME}]", *lines])
            (home / "config.toml").write_text(text + "\n")
            if self.is_secure:
                write_certificates(self.certificates)
            self.start_link()
            if self.is_secure:
                for site in self.sites:
                    write_node_key(self.folder / "keys" / site)
                with ThreadPoolExecutor() as pool:  # each is a process of three seconds
                    list(pool.map(self.register, self.sites))
            for site in self.sites:
                self.start_node(site)
            for site in self.sites:
                self.wait_for(site)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop everything."""
        self.close()

    @property
    def certificates(self) -> Path:
        """Folder of the server's certificates."""
        return self.folder / "certificates"

    def start_link(self) -> None:
        """Start the SuperLink and wait until it listens."""
        at, files = ["--host", "127.0.0.1", "--port", str(self.port)], self.certificates
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        tls = [str(files / part) if not part.startswith("-") else part for part in tls]
        kept = ["--database", str(self.folder / "superlink.db")] if self.database else []
        secure = self._pick([*tls, "--enable-supernode-auth"], ["--insecure"])
        self._start("server", ["flower-superlink", *at, *secure, *kept, "--disable-runtime-dependency-installation"])
        self._wait(lambda: _is_open(self.port), "the SuperLink to listen")

    def start_node(self, site: str) -> None:
        """Start a site's SuperNode; ``wait_for`` waits until the SuperLink knows it."""
        key, root = self.folder / "keys" / site, self.certificates / "ca.crt"
        secure = ["--root-certificates", str(root), "--auth-supernode-private-key", str(key)]
        call = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"]
        call += ["--port", str(free_port()), "--node-config", self.sites[site]]
        self._start(site, [*call, *self._pick(secure, ["--insecure"])])

    def wait_for(self, site: str, seconds: float = 60) -> None:
        """Wait until the SuperNode that was started last for a site is connected."""
        at = self._logged[site]
        self._wait(lambda: "SuperNode ID" in self.logs(site)[at:], f"SuperNode {site}", seconds)

    def register(self, site: str) -> None:
        """Register a site's public key under its name, as the server's administrator does."""
        done = self.call(
            "flwr", "supernode", "register", str(self.folder / "keys" / f"{site}.pub"), NAME, "--name", site
        )
        if done.returncode:
            raise RuntimeError(f"registering {site}: {done.stdout}")

    def call(self, *command: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        """Run a command of the administrator's and return what it printed."""
        program, *rest = command
        return subprocess.run(
            [str(BIN / program), *rest],
            env=self._environment | {"HOME": str(self._home("server")), "FLWR_HOME": str(self._home("server"))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def logs(self, name: str) -> str:
        """Return what a site's SuperNode, or the "server", has written."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def processes(self, name: str) -> list[psutil.Process]:
        """Return the processes of a site's SuperNode, or of the "server", the first one first."""
        try:
            first = psutil.Process(self.running[name].pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self, *names: str) -> None:
        """End SuperNodes of sites, or the "server", with SIGKILL, and all they started."""
        self._end(names, signal.SIGKILL)

    def close(self) -> None:
        """Stop the SuperNodes, then the SuperLink."""
        self._end([name for name in self.running if name != "server"], signal.SIGTERM)
        self._end([name for name in self.running if name == "server"], signal.SIGTERM)

    def _end(self, names: Sequence[str], how: signal.Signals) -> None:
        found = {name: self.processes(name) for name in names}
        for processes in found.values():
            for process in processes[:1] if how is signal.SIGTERM else processes:
                _signal(process, how)
        _, left = psutil.wait_procs([process for processes in found.values() for process in processes], timeout=8)
        for process in left:  # a SuperExec outlives its parent by seconds, and its app processes by more
            _signal(process, signal.SIGKILL)
        for name in names:
            first = self.running.pop(name)
            with contextlib.suppress(ProcessLookupError):  # the SuperExec of a SuperNode that ended by itself
                os.killpg(first.pid, signal.SIGKILL)
            first.wait()

    def _start(self, name: str, command: list[str]) -> None:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        home = {"HOME": str(self._home(name)), "FLWR_HOME": str(self._home(name))}
        path = self.folder / "logs" / f"{name}.log"
        self._logged[name] = len(self.logs(name)) if path.exists() else 0
        with path.open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self._environment | home,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._home(name),
                start_new_session=True,
            )

    def _home(self, name: str) -> Path:
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _wait(self, is_done: Callable[[], bool], what: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not is_done():
            ended = [name for name, process in self.running.items() if process.poll() is not None]
            if ended or time.monotonic() > until:
                seen = "\n".join(f"-- {name}\n{self.logs(name)}" for name in ended or self.running)
                raise RuntimeError(f"waited for {what}; ended: {ended}\n{seen[-4000:]}")
            time.sleep(0.1)

    def _pick(self, secure: T, insecure: T) -> T:
        return secure if self.is_secure else insecure


def _builder(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    start = datetime.now(UTC) - timedelta(minutes=5)
    built = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key.public_key())
    return (
        built.serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _signal(process: psutil.Process, how: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(how)
