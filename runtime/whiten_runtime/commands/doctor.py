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
from whiten_runtime.ort.providers import Provider, environment_providers


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

    Lists the processor, onnxruntime, the providers that really load, CUDA's libraries, and the fastest precision and
    device.

    Exits with 1 when the CPU, a --device or WHITEN_DEVICE does not work.
    """
    diagnosis = diagnose(providers or environment_providers())
    if as_json:
        print_json(diagnosis)
    else:
        echo("\n".join(_lines(diagnosis)))
    for problem in diagnosis.problems:
        fail_line(problem)
    sys.exit(1 if diagnosis.problems else 0)


def _lines(diagnosis: Diagnosis) -> list[str]:
    unit = diagnosis.processor
    quota = "no cgroup quota" if unit.quota is None else f"cgroup quota {unit.quota:g} CPUs"
    packages = ", ".join(f"{name} {version}" for name, version in diagnosis.packages.items()) or "none installed"
    lines = [
        f"system       {diagnosis.system}, Python {diagnosis.python}",
        f"processor    {unit.model or 'unknown'}: {', '.join(unit.features) or 'no features known'}",
        f"             {unit.affinity} CPUs, {quota}: {unit.threads} threads",
        f"onnxruntime  {packages}",
    ]
    if diagnosis.onnxruntime:
        lines.append(f"             {diagnosis.onnxruntime}")
    if diagnosis.note:
        lines.append(f"             {diagnosis.note}")
    for advice in diagnosis.fastest:
        lines.append(f"fastest      {advice.texts}: --precision {advice.precision}, --device {advice.device}")
        lines.append(f"             {advice.why}")
    if any(advice.device.startswith("openvino") for advice in diagnosis.fastest) and PLUGIN not in diagnosis.packages:
        lines.append(f"             openvino is not installed; {from_clone('openvino')}")
    for check in diagnosis.providers:
        lines.append(f"provider     {check.name}: {'works' if check.works else check.problem}")
    if diagnosis.driver is not None:
        lines.append(f"nvidia       {diagnosis.driver.problem or f'driver for CUDA {diagnosis.driver.version}'}")
        known = diagnosis.libraries
        cuda, cudnn = (f"{name} {known.get(name, 'not found')}" for name in ("CUDA", "cuDNN"))
        lines.append(f"             libraries: {cuda}, {cudnn} (few operators need it)")
        for gpu in diagnosis.driver.gpus:
            lines.append(f"             {gpu.name}, {human_size(gpu.memory)}, compute capability {gpu.capability}")
    return lines
