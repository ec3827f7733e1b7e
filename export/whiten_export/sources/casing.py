"""Lower-case texts in a tokenizer, as sentence-transformers does where a folder asks for it."""

from tokenizers import Tokenizer, normalizers


def lower_case(backend: Tokenizer) -> None:
    """Lower-case texts before all else, unless the tokenizer has a step that does so already.

    sentence-transformers 6 puts the same step at the same place.
    """
    known = backend.normalizer
    steps = []
    if isinstance(known, normalizers.Sequence):
        steps = [known[index] for index in range(len(known))]
    elif known is not None:
        steps = [known]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
