"""Create the environment that `make up` and `make test` run in, and install package sets into it.

    python deploy/install.py --venv .venv core cpu trial

Sets: `core` (the service), `test` (the service and what its checks need), `cpu` (SGLang on a CPU),
`gpu` (SGLang as published), `trial` (the small model to try out), `clients` and `clients-old` (what
is run against the service), `peers`, `dynamo` and `load` (what it is measured against, and a load
tool), `docs` (what builds the documentation's site), `broker`, `database`, `browser` and `nginx` (a
RabbitMQ, a PostgreSQL and a Chromium for the tests, and another peer, by Debian package). A set
that is installed already, from the same lock files, costs nothing; so a second run needs no
network. Needs Python 3.11 or newer and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SGLANG = "sglang==0.5.23"
TORCHVISION = "torchvision==0.28.0"  # the one made for the torch in deploy/cpu/requirements.txt
REAL_KERNELS = ("sglang-kernel", "sgl-kernel")


class InstallError(Exception):
    """Something the person at the terminal has to know or do; its text says what."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command of a set.

    Attributes:
        title: What the terminal says while it runs.
        command: Its argv.
    """

    title: str
    command: tuple[str, ...]


class Environment:
    """A virtual environment, with a note of what was installed into it and from which files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = str(directory / "bin" / "python")
        self._note = directory / "installed.json"

    def create(self) -> None:
        if self._works():
            return
        try:
            import ensurepip  # noqa: F401  # Debian leaves it out of python3
        except ImportError:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise InstallError(
                f"This Python cannot create virtual environments. On Debian or Ubuntu: "
                f"apt-get install python{version}-venv"
            ) from None
        if self.directory.exists():
            shutil.rmtree(self.directory)  # half made, or made by a Python that is gone
        run(
            Step(
                title=f"Creating {self.directory.name}",
                command=(sys.executable, "-m", "venv", str(self.directory)),
            )
        )

    def has(self, name: str, digest: str) -> bool:
        return self._installed().get(name) == digest

    def forget(self, name: str) -> None:
        self._write({key: value for key, value in self._installed().items() if key != name})

    def record(self, name: str, digest: str) -> None:
        self._write({**self._installed(), name: digest})

    def distribution(self, names: Iterable[str]) -> str | None:
        """The first of these distributions that is installed."""
        code = (
            "import sys\nfrom importlib import metadata\n"
            "have = {(d.name or '').lower().replace('_', '-') for d in metadata.distributions()}\n"
            "print(next((n for n in sys.argv[1:] if n in have), ''))"
        )
        found = subprocess.run(
            [self.python, "-c", code, *names], check=True, capture_output=True, text=True
        )
        return found.stdout.strip() or None

    def _works(self) -> bool:
        if not Path(self.python).exists():
            return False
        check = [self.python, "-c", "import pip, sys; sys.exit(sys.version_info < (3, 11))"]
        return subprocess.run(check, capture_output=True, check=False).returncode == 0

    def _installed(self) -> dict[str, str]:
        try:
            noted = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def _write(self, noted: dict[str, str]) -> None:
        part = self._note.with_suffix(".part")
        part.write_text(json.dumps(noted, indent=1))
        part.replace(self._note)


def run(step: Step) -> None:
    """Run a step, showing its last line on a terminal, and all its last lines when it fails."""
    started = time.monotonic()
    last: deque[str] = deque(maxlen=40)
    live = sys.stdout.isatty()
    if not live:
        print(f"  {step.title} ...", flush=True)
    with subprocess.Popen(
        step.command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            if live:
                _show(f"  {step.title} {time.monotonic() - started:4.0f} s  {line.strip()}")
    seconds = time.monotonic() - started
    if live:
        _show("")
    if process.returncode != 0:
        raise InstallError("\n".join([*last, f"{step.title}: failed ({' '.join(step.command)})"]))
    print(f"  {step.title}: {seconds:.0f} s", flush=True)


def _show(text: str) -> None:
    """Replace the terminal's current line."""
    width = shutil.get_terminal_size().columns - 1
    print(f"\r\x1b[K{text[:width]}", end="", flush=True)


def steps_for(name: str, environment: Environment, scratch: Path) -> list[Step]:
    pip = (environment.python, "-m", "pip", "install", "--no-input")
    match name:
        case "core" | "test":
            return [
                Step(
                    title=f"Installing the {'service' if name == 'core' else 'test'} packages",
                    command=(*pip, "--require-hashes", "-r", f"requirements/{name}.txt"),
                ),
                Step(
                    title="Installing Headrace",
                    command=(*pip, "--no-deps", "--no-build-isolation", "-e", "."),
                ),
            ]
        case "cpu":
            stand_in = scratch / "sgl_kernel_cpu"  # built in a copy: building leaves files behind
            shutil.copytree(ROOT / "deploy/cpu/sgl_kernel_cpu", stand_in)
            return [
                Step(
                    title="Installing torch and what SGLang needs (the largest part)",
                    command=(*pip, "-r", "deploy/cpu/requirements.txt"),
                ),
                Step(
                    title="Installing SGLang",
                    command=(*pip, "--no-deps", SGLANG, TORCHVISION),
                ),
                Step(
                    title="Installing the CPU stand-in for sgl_kernel",
                    command=(*pip, "--no-deps", "--no-build-isolation", str(stand_in)),
                ),
                Step(
                    title="Making torchvision importable",
                    command=(environment.python, "deploy/cpu/patch_torchvision.py"),
                ),
            ]
        case "docs" | "clients" | "clients-old" | "peers" | "dynamo" | "load":
            # The lock of Dynamo is whole, and leaves out what its package only pretends to need.
            whole = ("--no-deps",) if name == "dynamo" else ()
            return [
                Step(
                    title=f"Installing the {name} packages",
                    command=(*pip, *whole, "--require-hashes", "-r", f"requirements/{name}.txt"),
                )
            ]
        case "gpu":
            return [
                Step(
                    title="Installing SGLang for NVIDIA GPUs (several GB)",
                    command=(*pip, "-r", "deploy/gpu/requirements.txt"),
                )
            ]
        case "trial":
            return [
                Step(
                    title="Installing the trial model's packages (250 MB)",
                    command=(*pip, "--no-deps", "-r", "deploy/cpu/trial.txt"),
                )
            ]
    raise InstallError(f"There is no set {name!r}.")


FILES = {
    "core": ("requirements/core.txt", "pyproject.toml"),
    "test": ("requirements/test.txt", "pyproject.toml"),
    "cpu": ("deploy/cpu",),
    "docs": ("requirements/docs.txt",),
    "clients": ("requirements/clients.txt",),
    "clients-old": ("requirements/clients-old.txt",),
    "peers": ("requirements/peers.txt",),
    "dynamo": ("requirements/dynamo.txt",),
    "load": ("requirements/load.txt",),
    "gpu": ("deploy/gpu/requirements.txt",),
    "trial": ("deploy/cpu/trial.txt",),
}


def digest_of(name: str, directory: Path) -> str:
    """Changes whenever the set has to be installed anew."""
    seen = hashlib.sha256(f"{directory}".encode())
    for entry in ("deploy/install.py", *FILES[name]):
        path = ROOT / entry
        files = sorted(path.rglob("*.*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.suffix in {".py", ".toml", ".txt"}:
                seen.update(file.read_bytes())
    return seen.hexdigest()


def install(name: str, environment: Environment) -> None:
    if name == "cpu" and (real := environment.distribution(REAL_KERNELS)):
        raise InstallError(
            f"{real} is installed in {environment.directory}, and the CPU stand-in would take its "
            "place. Use another environment for the CPU engine (make VENV=...)."
        )
    if name == "gpu" and environment.distribution(["headrace-sgl-kernel-cpu"]):
        raise InstallError(
            f"{environment.directory} holds the CPU stand-in for sgl_kernel. "
            "Use another environment for the GPU engine (make VENV=...)."
        )
    digest = digest_of(name, environment.directory)
    if environment.has(name, digest):
        return
    environment.forget(name)  # so that a run cut short is not taken for a finished one
    with tempfile.TemporaryDirectory() as scratch:
        for step in steps_for(name, environment, Path(scratch)):
            run(step)
    environment.record(name, digest)


def have_broker() -> bool:
    if os.environ.get("TEST_AMQP_URL"):
        return True
    if shutil.which("rabbitmq-server") or Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists():
        return True
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def have_database() -> bool:
    if os.environ.get("TEST_DATABASE_URL") or shutil.which("initdb"):
        return True
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def install_broker() -> None:
    """Install Debian's RabbitMQ, without starting its service, where no broker is found."""
    if not have_broker():
        install_package(
            "rabbitmq-server",
            "RabbitMQ",
            "  - install rabbitmq-server with your package manager (it need not be running)\n"
            "  - start Docker\n"
            "  - set TEST_AMQP_URL to a broker that the tests may fill and empty",
        )


def install_database() -> None:
    """Install Debian's PostgreSQL, without starting its service, where none is found."""
    if not have_database():
        install_package(
            "postgresql",
            "PostgreSQL",
            "  - install postgresql with your package manager (it need not be running)\n"
            "  - set TEST_DATABASE_URL to a server in which the tests may create databases",
        )


def have_browser() -> bool:
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    if any(shutil.which(name) for name in names):
        return True
    kept = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache/ms-playwright")
    return any(Path(kept).glob("chromium*"))


def install_browser() -> None:
    """Install Debian's Chromium, in its form without a window, where none is found."""
    if not have_browser():
        install_package(
            "chromium-headless-shell",
            "Chromium",
            "  - install chromium with your package manager\n"
            "  - let Playwright fetch one: .venv/bin/playwright install chromium-headless-shell",
        )


def install_nginx() -> None:
    """Install Debian's nginx, without starting its service, where none is found."""
    if not shutil.which("nginx", path=f"{os.defpath}:/usr/sbin:/usr/local/sbin"):
        install_package("nginx-light", "nginx", "  - install nginx with your package manager")


def install_package(package: str, name: str, otherwise: str) -> None:
    root = () if os.geteuid() == 0 else ("sudo", "-n")
    if not shutil.which("apt-get") or (root and not may_sudo()):
        raise InstallError(
            f"A real {name} is needed, and there is none. One of these will do:\n{otherwise}"
        )
    # at run level 1 Debian's scripts start no service; the tests start a server of their own
    apt = (*root, "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get", "-y", "-q")
    run(Step(title="Updating Debian's package lists", command=(*apt, "update")))
    install = (*apt, "install", "--no-install-recommends", package)
    run(Step(title=f"Installing {name}", command=install))


def may_sudo() -> bool:
    if not shutil.which("sudo"):
        return False
    return subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0


SERVERS = {
    "broker": install_broker,
    "database": install_database,
    "browser": install_browser,
    "nginx": install_nginx,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Install Headrace into a virtual environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("sets", nargs="+", choices=[*FILES, *SERVERS], metavar="SET")
    arguments = parser.parse_args()
    try:
        environment = Environment(arguments.venv.resolve())
        environment.create()
        for name in arguments.sets:
            if name in SERVERS:
                SERVERS[name]()
            else:
                install(name, environment)
    except InstallError as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        sys.exit("\nInterrupted; running the same command again goes on from here.")


if __name__ == "__main__":
    main()
