// Prompts: instructions that a model was trained to read before a text, or around it.

import { UsageError, shown } from './errors.js';
import { PROMPTS } from './tables.js';

const TEXT = '{text}';

/** Return the prompt to apply, an empty string for none: by name, the words themselves, or else the default one. */
export function resolvePrompt(manifest, promptName = null, prompt = null) {
  if (prompt !== null && promptName !== null) throw new UsageError(`prompt and promptName '${promptName}' were both given; leave one out`);
  const name = promptName ?? manifest.default_prompt_name;
  if (prompt === null && name !== null && !(typeof name === 'string' && Object.hasOwn(manifest.prompts, name))) {
    const known = Object.keys(manifest.prompts).map((one) => `'${one}'`).join(', ') || 'none';
    throw new UsageError(`promptName is ${shown(name)}, but the bundle's prompts are: ${known}; or pass prompt`);
  }
  const found = prompt ?? (name === null ? '' : manifest.prompts[name]);
  if (typeof found !== 'string') throw new UsageError(`prompt is ${shown(found)}; wanted a string`);
  if (!manifest.include_prompt && found.includes(TEXT)) {
    throw new UsageError(`prompt goes around the text (${TEXT}), but this bundle leaves prompts out of its pooling; leave it out`);
  }
  return found;
}

/** Return the options of `encode` for queries or documents: the bundle's prompt for them, else its default template, else none. */
export function optionsFor(task, manifest, options) {
  const { route } = manifest;
  if (route !== task && (route === 'query' || route === 'document')) throw new UsageError(`this bundle holds the route ${route}; export one with --route ${task} for this`);
  if ((options.promptName ?? options.prompt ?? null) !== null) return options;
  const name = PROMPTS[task].find((one) => Object.hasOwn(manifest.prompts, one)) ?? null;
  const usual = resolvePrompt(manifest, name);
  return { ...options, promptName: null, prompt: name !== null || usual.includes(TEXT) ? usual : '' };
}

/** Return a text with a prompt before it, or around it if the prompt contains `{text}`. */
export function withPrompt(prompt, text) {
  return prompt.includes(TEXT) ? prompt.split(TEXT).join(text) : prompt + text;
}
