"""Measure single texts while a server computes somebody's bulk load: `python -m benchmarks.serving.bulk BUNDLE`.

A client posts many texts of about 200 tokens, and sends them again as openai-python does where it may: twice, after a
status of 429 or 500 and more. From one second later on, another client posts "hello" once a second. With --before, the
packages of another checkout are measured too, each server alone, and the chart shows both.
"""

import argparse
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from benchmarks.machine import made_by
from benchmarks.serving.client import Address
from benchmarks.serving.servers import Server, packages, whiten
from whiten_runtime.files.rows import read_texts

_WORDS = 150


@dataclass
class Single:
    """Holds when a single text was sent, in seconds after the bulk load, and what became of it."""

    sent: float
    seconds: float
    status: int


@dataclass
class Run:
    """Holds what one server did."""

    attempts: list[tuple[float, float, int]] = field(default_factory=list)  # sent, seconds, status
    singles: list[Single] = field(default_factory=list)


def main() -> None:
    """Write the table and the chart."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.bulk", description=__doc__)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE")
    parser.add_argument("--texts", type=Path, required=True, help="A sentence a line.")
    parser.add_argument("--before", type=Path, help="Another checkout, to compare with.")
    parser.add_argument("--count", type=int, default=2048, help="Texts of the bulk load.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=200.0, help="Seconds of single texts, at least.")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("bulk.md"))
    arguments = parser.parse_args()
    sentences = [text for text in read_texts(arguments.texts) if text.strip()]
    texts = long_texts(sentences, arguments.count)
    command = whiten(arguments.bundle, arguments.threads, "--log", "off")
    places = {"before": arguments.before, "now": Path(__file__).parents[2]}
    runs = {}
    for name, place in places.items():
        if place is not None:
            server = Server(["env", f"PYTHONPATH={packages(place)}", *command])
            try:
                runs[name] = run(server, texts, arguments.seconds)
            finally:
                server.stop()
    lines = [made_by("serving.bulk", f"{len(texts)} texts, one run each"), "", *table(runs)]
    arguments.out.write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines))
    draw(runs, arguments.out.with_suffix(".svg"))


def long_texts(sentences: Sequence[str], count: int) -> list[str]:
    """Return texts of about 200 tokens, made of sentences in turn; none is like another."""
    words = " ".join(sentences).split()
    starts = np.linspace(0, len(words) - _WORDS, count).astype(int)
    return [f"{number} {' '.join(words[start : start + _WORDS])}" for number, start in enumerate(starts)]


def run(server: Server, texts: Sequence[str], seconds: float) -> Run:
    """Send the bulk load, and single texts meanwhile."""
    found, begun = Run(), time.perf_counter()
    post(server.address, {"input": "hello"})
    bulk = threading.Thread(target=_bulk, args=(server.address, list(texts), found, begun))
    bulk.start()
    senders: list[threading.Thread] = []
    while bulk.is_alive() or time.perf_counter() - begun < seconds:
        time.sleep(max(0.0, begun + len(senders) + 1 - time.perf_counter()))
        senders.append(threading.Thread(target=_single, args=(server.address, found, begun)))
        senders[-1].start()
    for sender in (*senders, bulk):
        sender.join()
    return found


def _bulk(address: Address, texts: list[str], found: Run, begun: float) -> None:
    for attempt in range(3):
        sent = time.perf_counter()
        status, again = post(address, {"input": texts})
        found.attempts.append((sent - begun, time.perf_counter() - sent, status))
        if status == 200 or not again:
            return
        time.sleep(0.5 * 2**attempt)


def _single(address: Address, found: Run, begun: float) -> None:
    sent = time.perf_counter()
    status, _ = post(address, {"input": "hello"})
    found.singles.append(Single(sent - begun, time.perf_counter() - sent, status))


def post(address: Address, body: object) -> tuple[int, bool]:
    """Post JSON; return the status, and whether openai-python would send it again."""
    connection = HTTPConnection(*address, timeout=600)
    try:
        connection.request("POST", "/v1/embeddings", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        again = answer.status in (408, 409, 429) or answer.status >= 500
        return answer.status, again and answer.headers.get("x-should-retry") != "false"
    finally:
        connection.close()


def table(runs: dict[str, Run]) -> list[str]:
    """Return the lines of the table."""
    lines = ["| | bulk load: status after seconds | single texts | answered | p50 | p95 | longest |", "|---" * 7 + "|"]
    for name, found in runs.items():
        bulk = ", ".join(f"{status} after {seconds:.0f}" for _, seconds, status in found.attempts)
        times = sorted(single.seconds for single in found.singles if single.status == 200) or [float("nan")]
        shown = " | ".join(f"{value:.3f} s" for value in (*np.percentile(times, [50, 95]), times[-1]))
        answered = sum(single.status == 200 for single in found.singles)
        lines.append(f"| {name} | {bulk} | {len(found.singles)} | {answered} | {shown} |")
    return lines


def draw(runs: dict[str, Run], path: Path) -> None:
    """Draw each single text at the second it was sent, and the bulk load as a bar below."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "whiten"
    figure = Figure(figsize=(8, 2.2 * len(runs)), layout="constrained")
    for axes, (name, found) in zip(np.atleast_1d(figure.subplots(len(runs), sharex=True)), runs.items(), strict=True):
        for good, colour, label in ((True, "tab:blue", "answered"), (False, "tab:red", "refused or failed")):
            some = [single for single in found.singles if (single.status == 200) == good]
            axes.scatter([one.sent for one in some], [1000 * one.seconds for one in some], 6, colour, label=label)
        for sent, seconds, status in found.attempts:
            axes.axvspan(sent, sent + seconds, color="tab:green" if status == 200 else "tab:red", alpha=0.15, lw=0)
        axes.set(title=f"{name}: single texts; shaded, the bulk load", ylabel="ms", yscale="log", ylim=(0.5, 10_000))
        axes.legend(loc="upper right", fontsize="small")
    axes.set(xlabel="seconds after the bulk load was sent")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
