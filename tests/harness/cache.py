"""Foreign tools (Kafka's jars, client libraries) in a cache outside the checkout; each is installed once, on first use.

CORELANE_TEST_CACHE names the folder (default ~/.cache/corelane-tests). A finished install leaves a stamp that holds a hash of
what asked for it, so that a changed version is installed anew.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
CACHE = Path(os.environ.get("CORELANE_TEST_CACHE") or Path.home() / ".cache" / "corelane-tests")
KAFKA_VERSION = "4.4.0"

PYTHON_PACKAGES = [
    "confluent-kafka==2.16.1",
    "kafka-python==3.0.12",
    "lz4==4.4.5",
    "zstandard==0.25.0",
    "cramjam==2.14.0",
    "python-snappy==0.7.3",
    "crc32c==2.9.post0",
]


def target_dir() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")


def test_dir() -> Path:
    """The folder for brokers' data: on a real disk, under the build directory."""
    folder = Path(os.environ.get("CORELANE_TEST_DIR") or target_dir() / "test-data")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def file_system(path: Path) -> str:
    """Type and device of the file system that holds `path`."""
    best = ("", "?", "?")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        inside = str(path) == mount or str(path).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind, device)
    return f"{best[1]} on {best[2]} (mounted at {best[0]})"


def run(command, **kwargs):
    """Runs a command quietly; on failure shows what it printed."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)
    if done.returncode != 0:
        sys.stdout.write(done.stdout)
        raise SystemExit(f"failed ({done.returncode}): {' '.join(str(part) for part in command)}")
    return done.stdout


@contextmanager
def _lock(name):
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _once(name: str, asked: bytes, install) -> Path:
    """Runs `install(folder)` unless the folder holds exactly what is asked."""
    folder, stamp = CACHE / name, CACHE / f"{name}.stamp"
    digest = hashlib.sha256(asked).hexdigest()
    with _lock(name):
        if not (folder.is_dir() and stamp.exists() and stamp.read_text() == digest):
            print(f"   installing {name} into {CACHE}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            install(folder)
            stamp.write_text(digest)
    return folder


def debian(command: str, package: str) -> str:
    """The path of a command; its Debian package is installed if the command is missing."""
    if shutil.which(command) is None:
        with _lock("apt"):
            env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
            run(["apt-get", "update", "-qq"], env=env)
            run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", package], env=env)
    path = shutil.which(command)
    if path is None:
        raise SystemExit(f"no `{command}` here and Debian's `{package}` did not bring it")
    return path


def jars() -> Path:
    """Apache Kafka's jars: the broker that judges, the tools, the Java client."""
    pom = TESTS / "judge" / "pom.xml"

    def install(folder):
        mvn = debian("mvn", "maven")
        run([mvn, "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder}"])

    return _once(f"kafka-{KAFKA_VERSION}", pom.read_bytes(), install)


def java() -> str:
    return debian("java", "openjdk-17-jdk-headless")


def java_classes(source: Path) -> list[str]:
    """Compiles one Java file against Kafka's jars; gives the command that runs its class."""
    libraries = jars()

    def install(folder):
        debian("javac", "openjdk-17-jdk-headless")
        run(["javac", "-nowarn", "-cp", f"{libraries}/*", "-d", folder, source])

    folder = _once(f"java-{source.stem}", source.read_bytes() + KAFKA_VERSION.encode(), install)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return [java(), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx512m", quiet, "-cp", f"{folder}:{libraries}/*", source.stem]


def kafka_tool(name: str) -> list[str]:
    """The command of one of Apache Kafka's tools, a class under org.apache.kafka.tools."""
    options = ["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return [java(), *options, "-cp", f"{jars()}/*", f"org.apache.kafka.tools.{name}"]


def venv_python() -> Path:
    def install(folder):
        run([sys.executable, "-m", "venv", folder])
        run([folder / "bin" / "python", "-m", "pip", "install", "-q", *PYTHON_PACKAGES])

    # In a name of its own: the folder holds absolute paths of the interpreter that made it.
    asked = "\n".join([*PYTHON_PACKAGES, sys.version]).encode()
    return _once("python", asked, install) / "bin" / "python"


def in_venv():
    """Called first by a script that needs the client libraries: goes on inside the virtual environment."""
    python = venv_python()
    if Path(sys.prefix).resolve() != python.parent.parent.resolve():
        os.execv(python, [str(python), *sys.argv])


def node_modules() -> Path:
    package = TESTS / "clients" / "node" / "package.json"

    def install(folder):
        npm = debian("npm", "npm")
        shutil.copy(package, folder / "package.json")
        run([npm, "install", "--silent", "--no-audit", "--no-fund"], cwd=folder)

    return _once("node", package.read_bytes(), install) / "node_modules"


def go_binary() -> Path:
    """The franz-go client, built."""
    source = TESTS / "clients" / "go"
    asked = b"".join(path.read_bytes() for path in sorted(source.iterdir()))

    def install(folder):
        go = debian("go", "golang-go")
        env = dict(os.environ, GOFLAGS="-mod=mod -buildvcs=false", GOMODCACHE=str(CACHE / "go-modules"))
        for path in source.iterdir():
            shutil.copy(path, folder)
        run([go, "build", "-o", folder / "client", "."], cwd=folder, env=env)

    return _once("go", asked, install) / "client"
