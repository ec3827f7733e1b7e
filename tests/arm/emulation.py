"""Build an ARM64 machine of Debian's packages and wheels for aarch64, and run programs in it under qemu.

It needs root, Debian's qemu-user-static and debootstrap, and a package index. onnxruntime chooses its kernels by
/proc/cpuinfo, so that of the emulated processor is bound over it; on that of an x86 machine it ends with a fault.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
QEMU = Path("/usr/bin/qemu-aarch64-static")

PACKAGES = ROOT / "requirements" / "export-onnx.lock"
"""Packages for embedding, checking and refitting, with their hashes."""

RELEASES = {"3.11": "bookworm", "3.13": "trixie"}
"""Releases of Debian by their Python; none has 3.12."""

_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


@dataclass(frozen=True)
class Processor:
    """A processor that qemu emulates."""

    name: str  # qemu's name of it
    part: str  # part number, by which onnxruntime knows its instructions
    features: str  # of /proc/cpuinfo

    def cpuinfo(self) -> str:
        """Return the content of /proc/cpuinfo of two such cores."""
        core = f"BogoMIPS\t: 50.00\nFeatures\t: {self.features}\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
        core += f"CPU variant\t: 0x0\nCPU part\t: {self.part}\nCPU revision\t: 3\n"
        return "\n".join(f"processor\t: {number}\n{core}" for number in range(2))


PROCESSORS = {
    processor.name: processor
    for processor in (
        Processor("cortex-a72", "0xd08", "fp asimd evtstrm crc32 cpuid"),  # Raspberry Pi 4
        Processor(
            "neoverse-n1", "0xd0c", "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimddp"
        ),
        Processor("max", "0xd40", "fp asimd evtstrm crc32 atomics fphp asimdhp cpuid asimddp i8mm bf16 sve"),
    )
}


def missing() -> str | None:
    """Say what this machine lacks to emulate another; None if it has everything."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [name for name in (QEMU.name, "debootstrap", "dpkg", "unshare") if shutil.which(name) is None]
    return f"needs {', '.join(absent)} (Debian: qemu-user-static, debootstrap)" if absent else None


def build(machine: Path, python: str = "3.11") -> None:
    """Make the file system of a machine with a Python, the packages of the lock, and whiten as it is here."""
    if not (machine / "site").is_dir():
        machine.mkdir(parents=True, exist_ok=True)
        options = ("--foreign", "--arch=arm64", "--variant=minbase")
        packages = f"--include=python{python},libstdc++6,libexpat1,ca-certificates"
        _run("debootstrap", *options, packages, RELEASES[python], machine)
        for package in sorted((machine / "var" / "cache" / "apt" / "archives").glob("*.deb")):
            _run("dpkg", "-x", package, machine)
        shutil.copy(QEMU, machine / "usr" / "bin")
        cores = machine / "sys" / "devices" / "system" / "cpu"
        cores.mkdir(parents=True)
        for name in ("possible", "present"):
            (cores / name).write_text("0-1\n", "ascii")
        _download(machine / "wheels", python)
        _unzip((machine / "wheels").glob("*.whl"), machine / "site.partial")
        (machine / "site.partial").rename(machine / "site")
    shutil.rmtree(machine / "own", ignore_errors=True)
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", machine / "own", ROOT)
    _unzip((machine / "own").glob("*.whl"), machine / "own" / "site")


def run(machine: Path, processor: Processor, program: Path, arguments: Sequence[str], folder: Path) -> list[Any]:
    """Run a Python program with a folder of this machine as /work, and return the objects of JSON that it printed."""
    cpuinfo = folder / "cpuinfo"
    cpuinfo.write_text(processor.cpuinfo(), "ascii")
    (machine / "work").mkdir(exist_ok=True)
    shutil.copy(program, folder / program.name)
    python = next((machine / "usr" / "bin").glob("python3.[0-9][0-9]")).name
    emulated = f"{QEMU} -cpu {processor.name} -E PYTHONPATH=/site:/own/site -E WHITEN_THREADS=1 -E HOME=/tmp"
    script = (
        'set -e; mount -t proc proc "$1/proc"; mount --bind "$2" "$1/work"; '
        'mount --bind "$2/cpuinfo" "$1/proc/cpuinfo"; '
        f'machine=$1; shift 2; exec chroot "$machine" {emulated} /usr/bin/{python} "$@"'
    )
    command = ["unshare", "-m", "--pid", "--fork", "bash", "-c", script, "bash", machine, folder]
    done = subprocess.run([*command, f"/work/{program.name}", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        raise RuntimeError(f"{processor.name}: exit code {done.returncode}\n{said}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _download(folder: Path, python: str) -> None:
    platforms = [f"--platform={name}_aarch64" for name in _PLATFORMS]
    kind = ("--only-binary=:all:", "--implementation=cp", f"--python-version={python}")
    _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", *kind, *platforms, "-d", folder, "-r", PACKAGES)


def _unzip(wheels: Iterable[Path], folder: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def _run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
