"""Compare the speed of bundles with that of plain onnxruntime, and that ratio with the one recorded last.

`python -m benchmarks.guard FP32_BUNDLE [BUNDLE ...]`, with nothing else running, prints a line for each bundle and kind
of text, and exits with 1 if a ratio fell by more than `--allow`, or was never recorded. With `--record` it writes the
ratios into KIND.json beside this file, KIND being that of the processor. It is no test: its figures depend on the
machine, and its ratios only on the kind of processor.

The yardstick is what a program without whiten would do with the float32 graph: one session with default options,
batches of 32 texts as they come, each padded to its longest.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.machine import kind, machine
from benchmarks.timing import interleaved, seconds, seconds_each
from benchmarks.workloads import plain_tokenizer, workloads
from whiten_runtime import Encoder
from whiten_runtime.files.corpus import BUILTIN_CORPUS, Corpus
from whiten_runtime.ort.processor import default_threads

Ratios = dict[str, dict[str, float]]
"""Speeds over that of the yardstick, by precision and workload."""

HERE = Path(__file__).parent
YARDSTICK = "yardstick"

_BATCH = 32
_SHORT, _MIXED, _ONE = 200, 24, 40
"""Texts of each workload: a round of two bundles takes some 6 s on two slow cores."""


def plain(bundle: Path, threads: int, longest: int) -> Callable[[list[str]], object]:
    """Return a function that embeds texts with a bundle's graph, as a program without whiten would."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(bundle / "onnx/model.onnx"), options, providers=["CPUExecutionProvider"])
    tokenizer = plain_tokenizer(bundle)
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding()

    def embed(texts: list[str]) -> object:
        rows = []
        for start in range(0, len(texts), _BATCH):
            encodings = tokenizer.encode_batch(texts[start : start + _BATCH])
            ids = np.array([encoding.ids for encoding in encodings], np.int64)
            mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
            rows.append(session.run(None, {"input_ids": ids, "attention_mask": mask})[0])
        return np.concatenate(rows)

    return embed


def figures(embed: Callable[[list[str]], object], texts: Mapping[str, list[str]]) -> dict[str, float]:
    """Return the seconds of each workload: of one call, and for "one" the median of calls with one text."""
    found = {name: seconds(partial(embed, items)) for name, items in texts.items() if name != "one"}
    return found | {"one": median(seconds_each(lambda text: embed([text]), texts["one"]))}


def measure(bundles: list[Path], rounds: int, threads: int) -> Ratios:
    """Return the ratios of bundles to the yardstick, the first of them, by precision.

    Each takes its fastest round, the one that other programs disturbed least.

    Raises:
        SystemExit: the first bundle is not float32, or two have one precision.
    """
    with ExitStack() as stack:
        encoders = [stack.enter_context(Encoder(path, threads=threads)) for path in bundles]
        named = {encoder.manifest.precision: encoder for encoder in encoders}
        if encoders[0].manifest.precision != "fp32":
            raise SystemExit(f"{bundles[0]} is {encoders[0].manifest.precision}; name a float32 bundle first")
        if len(named) < len(bundles):
            raise SystemExit("two bundles have the same precision; name one of each")
        made = workloads("minilm", list(Corpus((BUILTIN_CORPUS,), None, None)), plain_tokenizer(bundles[0]))
        counts = {"short": _SHORT, "mixed": _MIXED, "one": _ONE}
        texts = {name: made[name][:count] for name, count in counts.items()}
        embed = {YARDSTICK: plain(bundles[0], threads, encoders[0].max_seq_length)}
        embed |= {name: encoder.encode for name, encoder in named.items()}
        runs = {name: partial(figures, function, texts) for name, function in embed.items()}
        found = interleaved(runs, rounds, warm_up=1)
    return {
        name: {
            workload: min(one[workload] for one in found[YARDSTICK]) / min(one[workload] for one in found[name])
            for workload in counts
        }
        for name in named
    }


def verdicts(now: Ratios, then: Ratios, allowed: float) -> tuple[list[str], bool]:
    """Compare ratios with recorded ones.

    Args:
        now: ratios measured now.
        then: recorded ratios.
        allowed: share of a recorded ratio by which one may be lower.

    Returns:
        A line for each ratio, and whether all of them were recorded and none fell too far.
    """
    lines, passed = [], True
    for name, ratios in now.items():
        for workload, ratio in ratios.items():
            line = f"{name}, {workload}: {ratio:.2f} times plain onnxruntime"
            recorded = then.get(name, {}).get(workload)
            if recorded is None:
                passed = False
                lines.append(f"{line}, not recorded; --record writes it")
                continue
            change = ratio / recorded - 1
            fell = change < -allowed
            passed &= not fell
            lines.append(f"{line}, recorded {recorded:.2f} ({change:+.0%}): {'FELL' if fell else 'ok'}")
    return lines, passed


def main() -> None:
    """Measure, and compare or record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("bundles", metavar="BUNDLE", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument(
        "--allow",
        type=float,
        default=0.25,
        help="share by which a ratio may fall; default 0.25: two runs differed by 0.22",
    )
    parser.add_argument("--record", action="store_true", help="write the ratios instead of comparing them")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the records")
    arguments = parser.parse_args()
    now = measure(arguments.bundles, arguments.rounds, arguments.threads)
    file = arguments.out / f"{kind()}.json"
    record = json.loads(file.read_text()) if file.exists() else {"ratios": {}}
    if arguments.record:
        rounded = {name: {key: round(value, 3) for key, value in ratios.items()} for name, ratios in now.items()}
        record = {"machine": machine(), "rounds": arguments.rounds, "ratios": record["ratios"] | rounded}
        file.write_text(json.dumps(record, indent=1) + "\n")
    lines, passed = verdicts(now, record["ratios"], arguments.allow)
    print("\n".join(lines))
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
