"""Say which precision and provider is fastest on a processor, judged by its instruction sets."""

from collections.abc import Collection
from dataclasses import dataclass

from whiten_runtime.ort.processor import BF16


@dataclass(frozen=True)
class Advice:
    """Holds the fastest way to embed one kind of text."""

    texts: str  # the kind of text
    precision: str  # precision of the bundle to export
    provider: str  # value of `--provider` or `device`
    why: str  # the reason, with what was measured


ALL_TEXTS = "all texts"
SHORT_TEXTS = "texts of up to about 250 tokens"
LONG_TEXTS = "longer texts"

# The figures are of all-MiniLM-L6-v2 on two threads, ratios within one run: benchmarks/precision, benchmarks/peers.
_AMX_SHORT = "AMX multiplies int8 fastest; 2.1 times float32 on short texts, and 2.0 on mixed lengths"
_AMX_LONG = "bfloat16 on AMX takes .47 of the CPU time of int8 at 415 tokens, where attention is most of the work"
_VNNI = "VNNI multiplies int8: 2.1 to 2.5 times float32"
_AVX2 = "AVX2 without VNNI multiplies int8 by pairs, which cannot saturate: 1.4 to 1.5 times float32"
_ARM = "DOTPROD or I8MM multiplies int8; not measured here on this kind of processor"
_PLAIN = "no instruction for int8 products is known here; not measured on this kind of processor"


def fastest(features: Collection[str]) -> tuple[Advice, ...]:
    """Return the fastest precision and provider for each kind of text.

    AVX-512 BF16 without AMX is no reason for bfloat16: int8 was 2.6 times as fast there.
    """
    if "AMX" in features and BF16 in features:
        return (
            Advice(SHORT_TEXTS, "int8", "cpu", _AMX_SHORT),
            Advice(LONG_TEXTS, "fp32", "openvino:bf16", _AMX_LONG),
        )
    if "VNNI" in features:
        return (Advice(ALL_TEXTS, "int8", "cpu", _VNNI),)
    if {"DOTPROD", "I8MM"} & {*features}:
        return (Advice(ALL_TEXTS, "int8", "cpu", _ARM),)
    if "AVX2" in features:
        return (Advice(ALL_TEXTS, "int8", "cpu", _AVX2),)
    return (Advice(ALL_TEXTS, "fp32", "cpu", _PLAIN),)
