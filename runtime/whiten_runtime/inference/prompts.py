"""Apply prompts: instructions that a model was trained to read before a text, or around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import UsageError

TEXT = "{text}"
"""Place of the text in a prompt that goes around it, such as AnglE's 'Summarize sentence "{text}" in one word:"'."""

QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")
"""Names of prompts for queries and documents, in order of preference, as in sentence-transformers."""


@dataclass(frozen=True)
class Prompts:
    """Holds the prompts of a bundle."""

    texts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default: str | None = None  # name of the prompt that texts get if none is asked for; None for no prompt
    pooled: bool = True  # whether the tokens of a prompt take part in the pooling

    @classmethod
    def of(cls, manifest: Manifest) -> "Prompts":
        """Return the prompts of a bundle."""
        return cls(manifest.prompts, manifest.default_prompt_name, manifest.include_prompt)

    def resolve(self, prompt_name: str | None = None, prompt: str | None = None) -> str:
        """Return the prompt to apply; an empty string for none."""
        if prompt is not None and prompt_name is not None:
            raise UsageError(f"prompt and prompt_name '{prompt_name}' were both given; leave one out")
        if prompt is None:
            name = self.default if prompt_name is None else prompt_name
            if name is not None and not (isinstance(name, str) and name in self.texts):
                known = ", ".join(f"'{one}'" for one in self.texts) or "none"
                raise UsageError(f"prompt_name is '{name}', but the bundle's prompts are: {known}; or pass prompt=TEXT")
            prompt = "" if name is None else self.texts[name]
        if not isinstance(prompt, str):
            raise UsageError(f"prompt is {prompt!r}; wanted a str")
        if not self.pooled and TEXT in prompt:
            raise UsageError(f"prompt goes around the text ({TEXT}), but this bundle leaves prompts out of its pooling")
        return prompt

    def for_task(self, *names: str) -> str:
        """Return the first prompt of these names that the bundle has.

        As in sentence-transformers, the default prompt does not take its place; but a default template does, because
        every text of such a model stands in a template.
        """
        named = next((name for name in names if name in self.texts), None)
        if named is not None:
            return self.resolve(named)
        default = self.resolve()
        return default if TEXT in default else ""


def with_prompt(prompt: str, texts: Sequence[str]) -> Sequence[str]:
    """Return texts with a prompt before each, or around each if it contains `{text}`."""
    if not prompt:
        return texts
    if TEXT in prompt:
        return [prompt.replace(TEXT, text) for text in texts]
    return [prompt + text for text in texts]
