"""The brokers under load: starts each on its own ports, and measures the resources that it uses.

Each runs with its defaults, anonymous clients on loopback, and no persistence. *Recorded* ones store messages of QoS 1 and 2, and
acknowledge them when they are synced to disk.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 30.0
PORTS = ("tcp", "tls", "ws")
HISTORY = "history"  # the port of the history service, which opens a little later than the listeners

BRAIDMQ = """
[node]
data_dir = "{data_dir}"
[listeners.tcp.default]
bind = "127.0.0.1:{tcp}"
[listeners.tls.default]
bind = "127.0.0.1:{tls}"
cert_file = "{cert}"
key_file = "{key}"
[listeners.ws.default]
bind = "127.0.0.1:{ws}"
[api]
bind = ""
[history]
bind = "127.0.0.1:{history}"
{recording}
"""
UNRECORDED = "topics = []"
# The benchmark data set may be years old.
RECORDED = 'durability = "fsync"\nretention = "36500d"'

# Debian's package is built without WebSocket.
MOSQUITTO = """
allow_anonymous true
listener {tcp} 127.0.0.1
listener {tls} 127.0.0.1
certfile {cert}
keyfile {key}
"""

NATS = """
server_name: bench
listen: "127.0.0.1:{extra}"
jetstream {{ store_dir: "{folder}/jetstream", sync_interval: {sync_interval} }}
mqtt {{ listen: "127.0.0.1:{tcp}" }}
websocket {{ listen: "127.0.0.1:{ws}", no_tls: true }}
"""

AMQTT = """
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{tcp}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


class Certificate(NamedTuple):
    """Files of a certificate for 127.0.0.1 and its key."""

    cert: Path
    key: Path


class Broker:
    """A broker process. ``ports`` names those of PORTS that it listens on, and the one of its HISTORY."""

    def __init__(self, name: str, command: list[str], config: str, folder: Path, ports: dict[str, int]) -> None:
        self.name = name
        self.ports = ports
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "config"
        self._file.write_text(config)
        self._log = folder / "log"
        self._command = [word.replace("CONFIG", str(self._file)) for word in command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker and wait until it listens; raises RuntimeError with the end of its log if it does not."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._file.parent
            )
        for name in self.ports:
            if name in PORTS:
                self._await_open(name)

    def await_history(self) -> int:
        """Wait for braidmq's history service and return its port; raises RuntimeError like `start`."""
        self._await_open(HISTORY)
        return self.ports[HISTORY]

    def _await_open(self, name: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _is_open(self.ports[name]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.name} did not start: {self._log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the broker; kill it if it does not stop."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    def memory_kib(self) -> float:
        """The memory that would be freed if the process ended (proportional set size)."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        return sum(int(size) for size in re.findall(r"^Pss:\s+(\d+) kB", text, re.M))

    def memory_peak_kib(self) -> float:
        """The peak resident memory."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return sum(int(size) for size in re.findall(r"^VmHWM:\s+(\d+) kB", text, re.M))

    def cpu_s(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_broker(
    name: str, folder: Path, certificate: Certificate, *, is_recorded: bool = False, data_dir: str | None = None
) -> Broker:
    """One of BROKERS, not started; raises LookupError if it is not installed. ``data_dir`` is only for braidmq."""
    folder = folder / name
    names = {port: _free_port() for port in (*PORTS, HISTORY, "extra")}
    values = {
        **names,
        "folder": folder,
        "cert": certificate.cert,
        "key": certificate.key,
        "data_dir": data_dir or folder / "data",
        "recording": RECORDED if is_recorded else UNRECORDED,
        "sync_interval": "always" if is_recorded else "2m",  # the default of nats
    }
    match name:
        case "braidmq":
            command = [str(Path(sys.executable).parent / "braidmq"), "start", "-c", "CONFIG"]
            return Broker(name, command, BRAIDMQ.format(**values), folder, _only(names, *PORTS, HISTORY))
        case "mosquitto":
            return Broker(
                name, [_find("mosquitto"), "-c", "CONFIG"], MOSQUITTO.format(**values), folder, _only(names, "tcp", "tls")
            )
        case "nats":
            return Broker(name, [_peer("nats-server"), "-c", "CONFIG"], NATS.format(**values), folder, _only(names, "tcp", "ws"))
        case "amqtt":
            return Broker(name, [_peer("amqtt"), "-c", "CONFIG"], AMQTT.format(**values), folder, _only(names, "tcp"))
    raise LookupError(f"no such broker: {name}")


BROKERS = ("braidmq", "mosquitto", "nats", "amqtt")


def version_of(name: str) -> str:
    """The version that the broker reports."""
    match name:
        case "braidmq":
            command = [str(Path(sys.executable).parent / "braidmq"), "--version"]
        case "mosquitto":
            command = [_find("mosquitto"), "-h"]
        case _:
            command = [_peer({"nats": "nats-server"}.get(name, name)), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+[\w.]*", said.stdout + said.stderr)
    return found[0] if found else "unknown"


def make_certificate(folder: Path) -> Certificate:
    """Create a self-signed certificate for the TLS listeners."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=2)
    )
    files = Certificate(folder / "server.crt", folder / "server.key")
    files.cert.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    # mosquitto, started as root, reads it as its own user.
    files.key.chmod(0o644)
    return files


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise LookupError(f"{program} is not installed")
    return found


def _peer(program: str) -> str:
    file = ROOT / ".peers" / "bin" / program
    if not file.exists():
        raise LookupError(f"{program} is not in .peers")
    return str(file)


def _only(ports: dict[str, int], *names: str) -> dict[str, int]:
    return {name: ports[name] for name in names}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
