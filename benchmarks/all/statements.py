"""List the sentences and rows that state measured figures: `{name}` is a figure of `values`.

A sentence is found by its words, so whoever changes the words changes them here too.
"""

SENTENCES: dict[str, tuple[str, ...]] = {
    "README.md": (
        "The export takes about {export_seconds} seconds on two quiet cores.",
        "as many sentences of a built-in corpus as it needs, here {export_sentences}.",
        "these two layers score {sts_before} on average without whitening and {sts_after} with it",
    ),
    "docs/guides/embedding.md": (
        "as it also adds positions and normalises: {layer0_rate} texts/s against {model2vec_rate}",
    ),
    "docs/guides/exporting.md": (
        "| `int8` | a quarter of the size | {int8_ratio} times on a CPU with VNNI |",
        "| fp16 | {fp16_ratio} | {fp16_one_ratio} | {fp16_mb} MB |",
        "| int8 | {int8_ratio} | {int8_one_ratio} | {int8_mb} MB |",
    ),
    "docs/guides/services.md": (
        "{fp32_loaded_mb} MB when loaded and {fp32_peak_mb} MB at the peak of 1,000 texts in one call; "
        "int8 {int8_loaded_mb} and {int8_peak_mb} MB.",
        "Over many further calls it grew by less than {growth} %",
    ),
    "docs/guides/speed.md": (
        "int8 is {int8_least} to {int8_most} times as fast as float32 on a CPU with VNNI, on short texts",
    ),
    "docs/guides/whitening.md": ("a soft whitening stops after {export_sentences} of 15,600 sentences",),
    "docs/when-not.md": (
        "no export; {fastembed_rate} texts/s against {minilm_rate}",
        "at the end of a run of short texts: {torch_rss_mb} MB against {minilm_rss_mb}",
    ),
    "benchmarks/memory/table.md": tuple(
        f"| minilm-{name} | {{{name}_imported_mb}} MB | {{{name}_loaded_mb}} MB | {{{name}_peak_one_mb}} MB "
        f"| {{{name}_peak_mb}} MB | {{{name}_growth}} % |"
        for name in ("fp32", "int8")
    ),
    "benchmarks/precision/table.md": tuple(
        f"| minilm-{name} | {{{name}_rate}} | {{{name}_ratio}} ({{{name}_ratio_least}} to {{{name}_ratio_most}}) "
        f"| {{{name}_one_ms}} ms | {{{name}_one_ratio}} ({{{name}_one_ratio_least}} to {{{name}_one_ratio_most}}) |"
        for name in ("fp32", "fp16", "int8")
    ),
}
"""Templates by page."""
