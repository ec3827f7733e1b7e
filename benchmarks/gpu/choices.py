"""Compare the choices that the runtime makes on a GPU with other choices."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.gpu.rivals import Rival, rate, whiten
from benchmarks.timing import interleaved
from whiten_runtime import Encoder
from whiten_runtime.inference.batching import WINDOW
from whiten_runtime.inference.gpu_runner import GpuRunner, Turns

CHANGES: dict[str, dict[str, int]] = {
    "as it is": {},
    **{f"{budget} tokens a run": {"budget": budget} for budget in (4096, 8192, 32768, 65536)},
    **{f"{workers} runs side by side": {"workers": workers} for workers in (1, 3)},
    "first window of 4096 texts": {"first_window": WINDOW},
}


def choices(bundle: Path, workloads: dict[str, list[str]], device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return texts per second by choice and workload. The first round is not counted, as new shapes cost once."""
    rival, encoder = whiten(bundle, device)
    loose = whiten(bundle, device, enable_skip_layer_norm_strict_mode=0)[0]
    candidates = {}
    for kind, texts in workloads.items():
        for name, changes in CHANGES.items():
            candidates[name, kind] = partial(changed_rate, rival, encoder, texts, changes)
        candidates["normalisation statistics in float16", kind] = partial(rate, loose.many, texts, 0)
    found: dict[str, dict[str, float]] = {}
    for (name, kind), rates in interleaved(candidates, rounds, warm_up=1).items():
        found.setdefault(name, {})[kind] = median(rates)
    return found


def changed_rate(rival: Rival, encoder: Encoder, texts: list[str], changes: dict[str, int]) -> float:
    """Return texts per second with another schedule."""
    with changed(encoder, changes):
        return rate(rival.many, texts, 0)


@contextmanager
def changed(encoder: Encoder, changes: dict[str, int]) -> Iterator[None]:
    """Change the encoder's schedule for the time of a block."""
    engine, runner = encoder._engine, encoder._engine._runner
    usual, turns = engine.schedule, getattr(runner, "_turns", None)
    engine.schedule = replace(usual, **changes)  # type: ignore[arg-type]
    if isinstance(runner, GpuRunner):
        runner._turns = Turns(engine.schedule.workers)
    try:
        yield
    finally:
        engine.schedule = usual
        if isinstance(runner, GpuRunner) and turns is not None:
            runner._turns = turns
