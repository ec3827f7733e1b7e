"""Measure `whiten serve` with what it is compared with: `python -m benchmarks.serving BUNDLE ... --texts FILE`.

Beside it: one bulk call of `Encoder.encode`, `encode([text])`, and, with --peer, FastAPI with sentence-transformers on
onnxruntime, int8. Rounds are interleaved, ratios are taken within a round, and the client runs on the same machine.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.machine import made_by
from benchmarks.serving.client import Sample, closed_loop, open_loop, request
from benchmarks.serving.servers import Server, peer, whiten
from benchmarks.timing import interleaved, median_ratio, spread
from whiten_runtime.files.rows import read_texts

_PATH = "/v1/embeddings"
_BULK = "one call of encode"
_WHITEN = "whiten serve"
_PEER = "FastAPI + sentence-transformers"


@dataclass(frozen=True)
class Round:
    """Holds what one round measured of one candidate."""

    singles: float  # texts a second, 64 clients with one text each
    tail: float  # p99 over p50 of these requests
    many: float  # texts a second, 8 clients with 32 texts each
    alone: float  # median seconds of one client's single texts
    cost: float  # seconds of the processor for a single text at 64 clients, in the process that computes it


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--texts", type=Path, required=True, help="A sentence a line.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="Seconds of each load.")
    parser.add_argument("--threads", type=int, help="Threads of every engine; default all usable CPUs.")
    parser.add_argument("--peer", type=Path, help="Python of the peer's environment.")
    parser.add_argument(
        "--peer-model",
        type=Path,
        action="append",
        default=[],
        help="Folder of its model of each bundle, as `peers` has.",
    )
    parser.add_argument("--peer-file", default="onnx/model_qint8_avx512_vnni.onnx")
    parser.add_argument(
        "--overload", type=float, default=0.0, help="Seconds of three times the capacity, of the first bundle."
    )
    parser.add_argument("--starts", type=int, default=5, help="Starts of each server; their median counts.")
    parser.add_argument("--long", type=int, default=0, help="Requests over which the first's memory may grow.")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("table.md"))
    arguments = parser.parse_args()
    texts = [text for text in read_texts(arguments.texts) if text.strip()]
    random.Random(0).shuffle(texts)
    if arguments.peer and len(arguments.peer_model) != len(arguments.bundles):
        parser.error("--peer needs one --peer-model for each bundle")
    lines = [made_by("serving", f"medians of {arguments.rounds} interleaved rounds of {arguments.seconds:g} s a load")]
    for index, bundle in enumerate(arguments.bundles):
        model = arguments.peer_model[index] if arguments.peer else None
        lines += ["", f"## {bundle.name}", "", *_measure(arguments, bundle, model, texts)]
    arguments.out.write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))


def _measure(arguments: argparse.Namespace, bundle: Path, model: Path | None, texts: Sequence[str]) -> list[str]:
    from whiten import Encoder
    from whiten_runtime.ort.processor import processor

    threads = arguments.threads or processor().threads
    commands = {_WHITEN: whiten(bundle, threads, "--max-wait", "600s", "--log", "off")}
    if model is not None:
        commands[_PEER] = peer(arguments.peer, model, arguments.peer_file, threads)
    starts = {name: _starts(command, arguments.starts) for name, command in commands.items()}
    servers = {name: Server(command) for name, command in commands.items()}
    try:
        with Encoder(bundle, threads=threads) as encoder:
            candidates: dict[str, Callable[[], Round]] = {_BULK: lambda: _bulk(encoder, texts)}
            for name, server in servers.items():
                candidates[name] = lambda server=server: _round(server, texts, arguments.seconds)  # type: ignore[misc]
            rounds = interleaved(candidates, arguments.rounds, warm_up=1)
        lines = _table(rounds)
        lines += ["", "| server | from start to ready | RSS then | RSS after the loads | peak |", "|---" * 5 + "|"]
        for name, server in servers.items():
            found = server.memory()
            sizes = (starts[name][1], found["VmRSS"], found["VmHWM"])
            memory = " | ".join(f"{size / 1e6:.0f} MB" for size in sizes)
            lines.append(f"| {name} | {spread(starts[name][0], 2)} s | {memory} |")
        if arguments.long and bundle is arguments.bundles[0]:
            lines += ["", _growth(servers[_WHITEN], texts, arguments.long)]
    finally:
        for server in servers.values():
            server.stop()
    if arguments.overload and bundle is arguments.bundles[0]:
        lines += ["", _overload(arguments, bundle, texts, threads)]
    return lines


def _starts(command: Sequence[str], count: int) -> tuple[list[float], float]:
    """Return the seconds from start to ready, of several starts, and the median of the bytes that are resident then."""
    times, sizes = [], []
    for _ in range(count):
        server = Server(command)
        times.append(server.start_seconds)
        sizes.append(server.memory()["VmRSS"])
        server.stop()
    return times, median(sizes)


def _bulk(encoder: object, texts: Sequence[str]) -> Round:
    """Return the rate of one call with 1,000 texts, and the median time of calls with one text."""
    encode = encoder.encode  # type: ignore[attr-defined]
    count = min(1000, len(texts))
    begun, start = time.process_time(), time.perf_counter()
    encode(list(texts[:count]))
    rate = count / (time.perf_counter() - start)
    cost = (time.process_time() - begun) / count
    times = []
    for text in texts[:200]:
        start = time.perf_counter()
        encode([text])
        times.append(time.perf_counter() - start)
    return Round(rate, 0.0, rate, median(times), cost)


def _round(server: Server, texts: Sequence[str], seconds: float) -> Round:
    singles = [request(_PATH, {"input": [text]}) for text in texts[:2000]]
    many = [request(_PATH, {"input": list(texts[start : start + 32])}) for start in range(0, len(texts) - 31, 32)]
    begun = server.cpu_seconds()
    crowd = _checked(closed_loop(server.address, singles, 64, seconds))
    cost = (server.cpu_seconds() - begun) / len(crowd.times)
    batches = _checked(closed_loop(server.address, many, 8, seconds))
    alone = _checked(closed_loop(server.address, singles, 1, seconds / 2))
    return Round(crowd.rate, crowd.percentile(99) / crowd.percentile(50), 32 * batches.rate, median(alone.times), cost)


def _checked(sample: Sample) -> Sample:
    """Return a sample of which every request was answered."""
    if sample.failed or sample.refusals or not sample.times:
        raise SystemExit(f"{sample.failed} requests failed, {len(sample.refusals)} were refused")
    return sample


def _table(rounds: dict[str, list[Round]]) -> list[str]:
    heads = ["", "64 clients, one text: texts/s", "of a bulk call", "p99 / p50", "8 clients, 32 texts: texts/s"]
    heads += ["of a bulk call", "one client: p50, ms", "over encode([t])", "64 clients: CPU ms a text"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    bulk = rounds[_BULK]
    for name, found in rounds.items():
        singles, many, alone = ([getattr(one, field) for one in found] for field in ("singles", "many", "alone"))
        tail = "" if name == _BULK else f"{median(one.tail for one in found):.2f}"
        lines.append(
            f"| {name} | {spread(singles, 0)} | {median_ratio(singles, [one.singles for one in bulk]):.2f} | {tail} "
            f"| {spread(many, 0)} | {median_ratio(many, [one.many for one in bulk]):.2f} "
            f"| {spread([1000 * value for value in alone])} "
            f"| {median_ratio(alone, [one.alone for one in bulk]):.2f} "
            f"| {spread([1000 * one.cost for one in found], 2)} |"
        )
    if _PEER in rounds:
        ours, theirs = ([one.singles for one in rounds[name]] for name in (_WHITEN, _PEER))
        lines += ["", f"Single texts at 64 clients, {_WHITEN} over {_PEER}: {median_ratio(ours, theirs):.2f}."]
    return lines


def _growth(server: Server, texts: Sequence[str], count: int) -> str:
    """Return how much memory grows over many requests, after the first tenth of them."""
    singles = [request(_PATH, {"input": [text]}) for text in texts]
    sizes = []
    for part in (count // 10, count - count // 10):
        done = 0
        while done < part:
            done += len(_checked(closed_loop(server.address, singles, 64, 5.0)).times)
        sizes.append(server.memory()["VmRSS"])
    megabytes = " to ".join(f"{size / 1e6:.0f}" for size in sizes)
    return f"Memory over {count} requests: {megabytes} MB ({sizes[1] / sizes[0] - 1:+.1%})."


def _overload(arguments: argparse.Namespace, bundle: Path, texts: Sequence[str], threads: int) -> str:
    """Return what becomes of three times as many requests as are computed, with two seconds of work that may wait."""
    command = whiten(bundle, threads, "--max-wait", "2s", "--log", "off")
    many = [request(_PATH, {"input": list(texts[start : start + 8])}) for start in range(0, len(texts) - 7, 8)]
    server = Server(command)
    try:
        closed_loop(server.address, many, 16, 2.0)
        seconds = max(5.0, arguments.overload / 6)
        peak = closed_loop(server.address, many, 16, seconds).rate
        sample = open_loop(server.address, many, 2000, arguments.overload, 3 * peak)
        peak = (peak + closed_loop(server.address, many, 16, seconds).rate) / 2
    finally:
        server.stop()
    refused = 1000 * quantile(sample.refusals)
    return (
        f"Three times the capacity for {arguments.overload:g} s: {sample.rate / peak:.2f} of the peak of {peak:.0f} "
        f"requests/s, the mean of before and after, are answered, p99 {sample.percentile(99):.2f} s (2 s may wait); "
        f"{len(sample.refusals)} are refused, half of them within {refused:.1f} ms; {sample.failed} failed."
    )


def quantile(times: Sequence[float]) -> float:
    """Return the median, and 0 of nothing."""
    return median(times) if times else 0.0


if __name__ == "__main__":
    main()
