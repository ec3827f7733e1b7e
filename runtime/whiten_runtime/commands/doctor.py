"""Implement `whiten doctor`: show what this machine can run, and what is missing."""

import sys

from whiten_runtime.commands.console import command, device_option, echo, fail_line, heading, print_json
from whiten_runtime.ort.doctor import Diagnosis, diagnose
from whiten_runtime.ort.session import Provider, environment_providers


@command(
    quiet=False,
    section="Check",
    examples=(
        "whiten doctor",
        "whiten doctor --device cuda --json",
    ),
)
@heading("Check")
@device_option
def doctor(providers: tuple[Provider, ...], as_json: bool) -> None:
    """Show what this machine can run, and what is missing.

    Lists the processor and its threads, onnxruntime, and the providers that really load. Every execution provider of
    onnxruntime can be a --device, by its name, with options as NAME:KEY=VALUE,... Several are tried in their order.

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
        f"system       {diagnosis.system}, Python {diagnosis.python}, whiten {diagnosis.whiten}",
        f"processor    {unit.model or 'unknown'}: {', '.join(unit.features) or 'no features known'}",
        f"             {unit.affinity} CPUs, {quota}: {unit.threads} threads",
        f"onnxruntime  {packages}",
    ]
    if diagnosis.onnxruntime:
        lines.append(f"             {diagnosis.onnxruntime}")
    for check in diagnosis.providers:
        lines.append(f"provider     {check.name}: {'works' if check.works else check.problem}")
    return lines
