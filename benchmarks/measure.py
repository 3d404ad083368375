"""Runs the load generator against brokers in rounds, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from benchmarks.brokers import BROKERS, ROOT, Broker, Certificate, make_broker
from benchmarks.shapes import PAIR_QOS0, Scale, Shape

LOAD_SOURCES = ROOT / "benchmarks" / "load"
RUN_TIMEOUT_S = 30
PEERS_WITHOUT_TARGET = ("nats", "amqtt")
Say = Callable[[str], None]


class Run(msgspec.Struct, omit_defaults=True):
    """The result of one run of the generator; ``error`` if it failed."""

    delivered_per_s: float = 0.0
    connects_per_s: float = 0.0
    sent: int = 0
    lost: int = 0
    dup: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    p999_ms: float = 0.0
    generator_cpu: float = 0.0
    error: str = ""


class Series(msgspec.Struct):
    """One shape: the runs of each broker (``braidmq v5`` is braidmq with MQTT 5), in the order of rounds."""

    name: str
    title: str
    runs: dict[str, list[Run]]
    target: float | None = None

    def rates(self, broker: str) -> list[float]:
        """Messages or connections per second in each round; empty if the broker finished none."""
        runs = self.runs.get(broker, [])
        return [] if any(run.error for run in runs) else [run.delivered_per_s or run.connects_per_s for run in runs]

    def median(self, broker: str) -> float | None:
        """The broker's median rate."""
        rates = self.rates(broker)
        return statistics.median(rates) if rates else None

    def ratio(self, broker: str, to: str) -> float | None:
        """The median of the ratios of rounds run one after the other."""
        pairs = [(mine, theirs) for mine, theirs in zip(self.rates(broker), self.rates(to), strict=False) if theirs]
        return statistics.median(mine / theirs for mine, theirs in pairs) if pairs else None

    def faults(self, broker: str) -> tuple[int, int]:
        """Messages lost and repeated in all rounds."""
        runs = self.runs.get(broker, [])
        return sum(run.lost for run in runs), sum(run.dup for run in runs)


class Bench:
    """Runs measurements; all brokers are started, and idle except the one being measured."""

    def __init__(self, folder: Path, certificate: Certificate, scale: Scale, say: Say, generator: Path | None = None) -> None:
        """``generator``: another one with the same options and output as ours, for plain flows and connects."""
        self.scale = scale
        self.say = say
        self.folder = folder
        self.certificate = certificate
        self.brokers: dict[str, Broker] = {}
        self._flood = build(folder, "flood")
        self._mqload = generator or build(folder, "mqload")
        self._generator = generator or self._flood
        self._cannot_connect: set[str] = set()  # brokers that once failed to accept all clients in time

    def start(self, names: tuple[str, ...]) -> None:
        """Start the installed brokers; report which are not installed."""
        for name in names:
            try:
                broker = make_broker(name, self.folder, self.certificate)
                broker.start()
            except (LookupError, RuntimeError, OSError) as problem:
                self.say(f"left out: {problem}")
            else:
                self.brokers[name] = broker

    def stop(self) -> None:
        """Stop all brokers."""
        for broker in self.brokers.values():
            broker.stop()

    def flow(self, shape: Shape) -> Series:
        """Run one shape in rounds on every broker that supports it."""
        series = Series(shape.name, shape.title, {}, shape.target)
        for number in range(self.scale.rounds):
            for name, broker in self._speaking(shape.port):
                if name in PEERS_WITHOUT_TARGET and number >= self.scale.peer_rounds:
                    continue
                self.run_flow(series, name, broker, shape)
                if name == "braidmq" and shape.v5:
                    self.run_flow(series, "braidmq v5", broker, shape, "-5")
        return series

    def connect(self) -> Series:
        """Connect and subscribe as fast as the broker allows; ``mqload`` shares no code with the other generators."""
        series = Series("connect", f"connect and subscribe, {self.scale.clients} clients of mqload", {})
        for number in range(self.scale.rounds):
            for name, broker in self._speaking("tcp"):
                if name in PEERS_WITHOUT_TARGET and number >= self.scale.peer_rounds:
                    continue
                words = ("-n", str(self.scale.clients), "-c", "200")
                run = self.generate(broker, "tcp", "connect", *words, program=self._mqload)
                self._note(series, name, run)
                if run.error:
                    self._cannot_connect.add(name)
        return series

    def memory(self) -> dict[str, float]:
        """KiB per idle subscribed client, of freshly started brokers."""
        found: dict[str, float] = {}
        for name in self.brokers:
            broker = make_broker(name, self.folder / "fresh", self.certificate)
            broker.start()
            try:
                before = broker.memory_kib()
                with self._held(broker, "connect", "-n", str(self.scale.clients), "-c", "200"):
                    time.sleep(1.0)  # memory used only for connecting is freed by then
                    found[name] = (broker.memory_kib() - before) / self.scale.clients
                self.say(f"memory     {name:12} {found[name]:8.2f} KiB per client")
            except RuntimeError as problem:
                self.say(f"memory     {name:12} {problem}")
            finally:
                broker.stop()
        return found

    def idle(self) -> dict[str, float]:
        """The processor use of a broker with many idle connections."""
        found: dict[str, float] = {}
        for name, broker in self._speaking("tcp"):
            if name in self._cannot_connect:
                continue
            try:
                with self._held(broker, "connect", "-n", str(self.scale.idle_clients), "-c", "200"):
                    time.sleep(1.0)
                    before = broker.cpu_s()
                    time.sleep(self.scale.idle_seconds)
                    found[name] = (broker.cpu_s() - before) / self.scale.idle_seconds
                self.say(f"idle       {name:12} {found[name]:8.2%} of a processor")
            except RuntimeError as problem:
                self.say(f"idle       {name:12} {problem}")
        return found

    def table(self) -> Series:
        """braidmq with an empty and with a full subscription table; the same flow, rounds in turn."""
        title = f"with {self.scale.exact:,} exact and {self.scale.wildcard:,} wildcard subscriptions"
        series = Series("table", title, {})
        broker = self.brokers.get("braidmq")
        if broker is None:
            return series
        for _ in range(self.scale.rounds):
            self.run_flow(series, "empty", broker, PAIR_QOS0)
        clients = max(1, (self.scale.exact + self.scale.wildcard) // 5000)
        words = ("-e", str(self.scale.exact), "-W", str(self.scale.wildcard), "-n", str(clients))
        try:
            with self._held(broker, "table", *words):
                for _ in range(self.scale.rounds):
                    self.run_flow(series, "full", broker, PAIR_QOS0)
        except RuntimeError as problem:
            series.runs["full"] = [Run(error=str(problem))]
            self.say(f"table      {problem}")
        return series

    def latency(self, sustained: dict[str, float]) -> dict[str, Run]:
        """Latency at half the rate that each broker sustains without batches, and of braidmq at half of mosquitto's rate."""
        found: dict[str, Run] = {}
        plans = [(name, name, rate / 2) for name, rate in sustained.items()]
        if "braidmq" in sustained and "mosquitto" in sustained:
            plans.append(("braidmq at mosquitto's half load", "braidmq", sustained["mosquitto"] / 2))
        for title, name, rate in plans:
            words = ("-m", "pair", "-P", "500", "-q", "0", "-w", "1000", "-r", f"{rate:.0f}", "-d", str(self.scale.seconds))
            run = self.generate(self.brokers[name], "tcp", "flow", *words)
            found[f"{title} ({rate:,.0f}/s)"] = run
            self.say(f"latency    {title:12} at {rate:10,.0f}/s: p50 {run.p50_ms} ms, p99 {run.p99_ms} ms {run.error}")
        return found

    def run_flow(self, series: Series, name: str, broker: Broker, shape: Shape, *more: str) -> None:
        """Run a shape once, and add the result to the series under this name."""
        run = self.generate(broker, shape.port, "flow", *shape.arguments, "-d", str(self.scale.seconds), *more)
        self._note(series, name, run)

    def generate(self, broker: Broker, port: str, command: str, *words: str, program: Path | None = None) -> Run:
        """Run the generator once; the result includes its error, if any."""
        program = program or (self._generator if port == "tcp" and "-r" not in words else self._flood)
        try:
            done = subprocess.run(
                [str(program), command, "-p", str(broker.ports[port]), *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.scale.seconds + RUN_TIMEOUT_S,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return Run(error=f"not finished within {self.scale.seconds + RUN_TIMEOUT_S} s")
        if done.returncode:
            return Run(error=done.stderr.strip().removeprefix("flood: ")[-200:])
        return msgspec.json.decode(done.stdout, type=Run)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _speaking(self, port: str) -> Iterator[tuple[str, Broker]]:
        return ((name, broker) for name, broker in self.brokers.items() if port in broker.ports)

    def _note(self, series: Series, name: str, run: Run) -> None:
        series.runs.setdefault(name, []).append(run)
        rate = run.delivered_per_s or run.connects_per_s
        faults = f"  lost {run.lost}, repeated {run.dup}" if run.lost or run.dup else ""
        self.say(f"{series.name:11}{name:12} {rate:12,.0f}/s{faults}  {run.error}".rstrip())

    @contextlib.contextmanager
    def _held(self, broker: Broker, command: str, *words: str) -> Iterator[None]:
        """Hold clients or subscriptions while the block runs."""
        process = subprocess.Popen(
            [str(self._flood), command, "-p", str(broker.ports["tcp"]), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            if not process.stdout.readline():
                raise RuntimeError(process.stderr.read().decode().strip())
            try:
                yield
            finally:
                process.stdin.close()


def build(folder: Path, name: str) -> Path:
    """Compile one of the load generators: ``flood``, ``keep``, ``mqload`` or ``storm``; the last two need no other code."""
    program = folder / name
    is_alone = name in ("mqload", "storm")
    sources = [str(LOAD_SOURCES / f"{name}.c"), *([] if is_alone else [str(LOAD_SOURCES / "transport.c")])]
    libraries = () if is_alone else ("-l:libssl.so.3", "-l:libcrypto.so.3")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", str(program), *sources, *libraries], check=True)
    return program


def known_brokers(asked: tuple[str, ...], scale: Scale) -> tuple[str, ...]:
    """The requested brokers, or those that the scale has time for."""
    if asked:
        return tuple(name for name in BROKERS if name in asked)
    return BROKERS if scale.peer_rounds else ("braidmq", "mosquitto")
