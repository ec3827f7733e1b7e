// Make the parts of @huggingface/tokenizers do what the tokenizers of Rust do, which Python uses; refuse the others.
//
// tests/edge/test_ids.py compares both, text by text and character by character.

import { shown } from './checks.js';
import { BundleError } from './errors.js';
import { precompiled } from './precompiled.js';

const PUNCTUATION = '\\p{P}!-/:-@\\[-`{-~';
const CHINESE = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;
const IGNORED = /(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\ufffd]/gu;

/** Lower each character by itself: Rust knows no final sigma. */
const lower = (text) => text.split('Σ').map((part) => part.toLowerCase()).join('σ');
const pattern = (source) => new RegExp(source, 'gu');
const matches = (regex) => (text) => text.match(regex) ?? [];

const NORMALIZERS = {
  NFC: null, NFD: null, NFKC: null, NFKD: null, StripAccents: null, Prepend: null,
  Lowercase: () => lower,
  Precompiled: ({ precompiled_charsmap: table }) => (table ? precompiled(table) : (text) => text),
  Strip: ({ strip_left: left, strip_right: right }) => (text) => {
    const begun = left ? text.replace(/^\p{White_Space}+/u, '') : text;
    return right ? begun.replace(/(?<!\p{White_Space})\p{White_Space}+$/u, '') : begun;
  },
  Replace: ({ content }, part) => (text) => text.replaceAll(part.pattern, () => content),
  BertNormalizer: (config) => (text) => {
    if (config.clean_text) text = text.replace(IGNORED, '').replace(/\p{White_Space}/gu, ' ');
    if (config.handle_chinese_chars) text = text.replace(CHINESE, ' $& ');
    if (config.strip_accents ?? config.lowercase) text = text.normalize('NFD').replace(/\p{Mn}/gu, '');
    return config.lowercase ? lower(text) : text;
  },
};

/** Return the pieces of a text, and whether each is a match. */
function splitAt(text, regex, invert) {
  const pieces = [];
  let end = 0;
  for (const { 0: match, index } of text.matchAll(regex)) {
    if (index > end) pieces.push([text.slice(end, index), invert]);
    if (match) pieces.push([match, !invert]);
    end = index + match.length;
  }
  return end < text.length ? [...pieces, [text.slice(end), invert]] : pieces;
}

const JOINS = {
  Isolated: (pieces) => pieces.map(([piece]) => piece),
  Removed: (pieces) => pieces.filter(([, match]) => !match).map(([piece]) => piece),
  MergedWithPrevious: (pieces) => pieces.reduce((merged, [piece, match], index) => {
    const joins = match && index > 0 && !pieces[index - 1][1];
    return joins ? [...merged.slice(0, -1), merged.at(-1) + piece] : [...merged, piece];
  }, []),
};

const SPLITTERS = {
  ByteLevel: (_, part) => {
    part.pattern = pattern("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+");
    return null;
  },
  BertPreTokenizer: () => matches(pattern(`[^\\p{White_Space}${PUNCTUATION}]+|[${PUNCTUATION}]`)),
  WhitespaceSplit: () => matches(pattern('\\P{White_Space}+')),
  Metaspace: ({ split = true, replacement }, part) => {
    const whole = part.pre_tokenize_text.bind(part);
    return split ? (text, options) => whole(text, options).flatMap((piece) => piece.split(pattern(`(?=${replacement})`))) : null;
  },
  Split: ({ behavior, invert }, part) => {
    const join = JOINS[behavior] ?? refuse(`splits by ${behavior}`);
    return (text) => join(splitAt(text, part.pattern, invert)).filter((piece) => piece);
  },
};

const MODELS = {
  WordPiece: () => false,
  WordLevel: () => false,
  BPE: (model) => Boolean(model.dropout || model.continuing_subword_prefix),
  Unigram: (model) => Boolean(model.byte_fallback),
};

const ENDS = ['TemplateProcessing', 'BertProcessing', 'RobertaProcessing', 'ByteLevel', 'Sequence'];

/** Throw BundleError if a tokenizer.json has a part whose ids are not known to be the same. */
export function checkKnown(json) {
  const { model, added_tokens: tokens, post_processor: ends } = json;
  if (MODELS[model.type]?.(model) ?? true) refuse(`is a ${model.type} of a kind that is not known`);
  const alone = tokens.find((token) => token.single_word);
  if (alone) refuse(`has the token ${shown(alone.content)} for whole words alone`);
  for (const part of [ends, ...(ends?.processors ?? [])]) if (part && !ENDS.includes(part.type)) refuse(`has the post-processor ${part.type}`);
  for (const part of stepsOf(json.normalizer, 'normalizers')) if (!(part.type in NORMALIZERS)) refuse(`has the normalizer ${part.type}`);
  const splitters = stepsOf(json.pre_tokenizer, 'pretokenizers');
  for (const part of splitters) if (!(part.type in SPLITTERS)) refuse(`has the pre-tokenizer ${part.type}`);
  if (splitters.length > 1 && splitters.some((part) => part.prepend_scheme === 'first')) refuse('marks the first of several words');
}

/** Replace what differs in a tokenizer of @huggingface/tokenizers. */
export function align(tokenizer, json) {
  patch(NORMALIZERS, json.normalizer, 'normalizers', tokenizer.normalizer, 'normalizers', 'normalize');
  patch(SPLITTERS, json.pre_tokenizer, 'pretokenizers', tokenizer.pre_tokenizer, 'tokenizers', 'pre_tokenize_text');
}

function patch(table, json, key, built, builtKey, method) {
  const parts = json?.type === 'Sequence' ? built[builtKey] : [built];
  stepsOf(json, key).forEach((config, index) => {
    const better = table[config.type]?.(config, parts[index]);
    if (better) parts[index][method] = better;
  });
}

function stepsOf(json, key) {
  if (!json) return [];
  return json.type === 'Sequence' ? json[key] : [json];
}

function refuse(what) {
  throw new BundleError(`tokenizer.json ${what}, for which JavaScript's tokenizer may give other ids than Python's; use whiten in Python for this bundle`);
}
