"""Implement `whiten doctor`: show what this machine can run, and what is missing."""

import sys

from whiten_runtime.commands.console import (
    device_option,
    echo,
    fail_line,
    human_size,
    json_option,
    one_line_errors,
    print_json,
)
from whiten_runtime.commands.help import command, heading
from whiten_runtime.errors import from_clone
from whiten_runtime.ort.doctor import Diagnosis, diagnose
from whiten_runtime.ort.openvino import PLUGIN
from whiten_runtime.ort.providers import Provider


@command(
    section="Check",
    examples=(
        "whiten doctor",
        "whiten doctor --device cuda --json",
    ),
)
@heading("Check")
@device_option
@heading("Output")
@json_option
@one_line_errors
def doctor(providers: tuple[Provider, ...], as_json: bool) -> None:
    """Show what this machine can run, and what is fastest on it.

    That is its processor, onnxruntime, the providers that really load, CUDA's libraries, and which precision and
    device is fastest.

    Exits with 1 when the CPU or a --device does not work.
    """
    found = diagnose(providers)
    if as_json:
        print_json(found)
    else:
        echo("\n".join(_lines(found)))
    for problem in found.problems:
        fail_line(problem)
    sys.exit(1 if found.problems else 0)


def _lines(found: Diagnosis) -> list[str]:
    unit = found.processor
    quota = "no cgroup quota" if unit.quota is None else f"cgroup quota {unit.quota:g} CPUs"
    packages = ", ".join(f"{name} {version}" for name, version in found.packages.items()) or "none installed"
    lines = [
        f"system       {found.system}, Python {found.python}",
        f"processor    {unit.model or 'unknown'}: {', '.join(unit.features) or 'no features known'}",
        f"             {unit.affinity} CPUs, {quota}: {unit.threads} threads",
        f"onnxruntime  {packages}",
    ]
    if found.onnxruntime:
        lines.append(f"             {found.onnxruntime}")
    if found.note:
        lines.append(f"             {found.note}")
    for advice in found.fastest:
        lines.append(f"fastest      {advice.texts}: --precision {advice.precision}, --device {advice.device}")
        lines.append(f"             {advice.why}")
    if any(advice.device.startswith("openvino") for advice in found.fastest) and PLUGIN not in found.packages:
        lines.append(f"             openvino is not installed; {from_clone('openvino')}")
    for check in found.providers:
        lines.append(f"provider     {check.name}: {'works' if check.works else check.problem}")
    if found.driver is not None:
        lines.append(f"nvidia       {found.driver.problem or f'driver for CUDA {found.driver.version}'}")
        known = found.libraries
        cuda, cudnn = (f"{name} {known.get(name, 'not found')}" for name in ("CUDA", "cuDNN"))
        lines.append(f"             libraries: {cuda}, {cudnn} (few operators need it)")
        for gpu in found.driver.gpus:
            lines.append(f"             {gpu.name}, {human_size(gpu.memory)}, compute capability {gpu.capability}")
    return lines
