"""A manifest in words."""

from whiten_runtime.console import human_size, table
from whiten_runtime.manifest import Manifest
from whiten_runtime.parity import in_words


def describe(manifest: Manifest) -> str:
    """Describe a bundle in aligned lines of text."""
    source, whitening, parity = manifest.source, manifest.whitening, manifest.parity
    origin = source.checkpoint or "local directory"
    rows = [
        ("model", f"{source.model} ({origin}{f' at {source.revision[:12]}' if source.revision else ''})"),
    ]
    if source.merged_into is not None:
        rows.append(("adapter of", source.merged_into))
    if manifest.input == "vectors":
        rows.append(("takes", f"vectors of {source.hidden_size} dimensions"))
    else:
        rows.append(("network", f"{source.model_type}, {source.num_hidden_layers} layers of {source.hidden_size}"))
        rows.append(("layers", f"{', '.join(map(str, manifest.layers))}, {manifest.pooling} pooling"))
    if whitening is None:
        rows.append(("whitening", "none"))
    else:
        names = ", ".join(corpus.name for corpus in whitening.corpus)
        removed = f", {whitening.common_components} common component removed" if whitening.common_components else ""
        fitted = f"{whitening.n_samples:,} {'vectors' if manifest.input == 'vectors' else 'sentences'} of {names}"
        rows.append(("whitening", f"{whitening.method}{removed}, rank {whitening.rank}, {fitted}"))
    rows.append(("vectors", f"{manifest.dimension} dimensions{', L2-normalised' if manifest.normalize else ''}"))
    if manifest.input == "text":
        rows.append(("max length", f"{manifest.max_seq_length} tokens"))
    rows.append(("precision", f"{manifest.precision}, opset {manifest.opset}"))
    if parity is not None:
        rows.append(("parity", f"{in_words(parity)}, against {parity.reference}"))
    total = sum(record.bytes for record in manifest.files.values())
    rows.append(("size", f"{human_size(total)} in {len(manifest.files)} files"))
    rows.append(("made with", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())))
    return table(("bundle", manifest.name), rows)
