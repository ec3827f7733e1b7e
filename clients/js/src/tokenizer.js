// Turn texts into token ids with @huggingface/tokenizers, and cut long ones where Python does.

import { Tokenizer as Backend } from '@huggingface/tokenizers';
import { charsmap } from './charsmap.js';
import { BundleError, UsageError } from './errors.js';
import { TOKEN_CHARACTERS } from './tables.js';

/** Words, and runs of other characters, as Rust's regular expressions understand \w+|[^\w\s]+. */
const WORDS = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\p{White_Space}]+/gu;

/** Correct steps that differ from Rust's tokenizers: maps of characters (NFKC here), and what words and white space are. */
function correct(step, described) {
  const parts = described?.normalizers ?? described?.pretokenizers ?? [];
  (step?.normalizers ?? step?.tokenizers)?.forEach((part, index) => correct(part, parts[index]));
  if (described?.type === 'Precompiled' && described.precompiled_charsmap) step.normalize = charsmap(described.precompiled_charsmap);
  if (described?.type === 'Whitespace') step.pre_tokenize_text = (text) => text.match(WORDS) ?? [];
  if (described?.type === 'WhitespaceSplit') step.pre_tokenize_text = (text) => text.match(/\P{White_Space}+/gu) ?? [];
}

/** Return the first characters of a text, or the last: code points, as Python counts them. */
function part(text, count, last) {
  if (text.length <= count) return text;
  const points = [...(last ? text.slice(-2 * count) : text.slice(0, 2 * count))]; // of which each is one unit, or two
  return (last ? points.slice(-count) : points.slice(0, count)).join('');
}

export class Tokenizer {
  /** Take the content of tokenizer.json, and the bundle's manifest. */
  constructor(json, { max_seq_length: most, max_characters: characters = TOKEN_CHARACTERS * most, truncation_side: side }) {
    try {
      this.backend = new Backend(json, { unk_token: json.model?.unk_token });
      correct(this.backend.normalizer, json.normalizer);
      correct(this.backend.pre_tokenizer, json.pre_tokenizer);
      const tokens = this.backend.post_processor?.(['\0'], null, true).tokens ?? ['\0'];
      this.prefix = tokens.indexOf('\0'); // special tokens before a text
      this.suffix = tokens.length - this.prefix - 1; // and after it
    } catch (error) {
      throw new BundleError(`tokenizer.json: not a tokenizer that @huggingface/tokenizers understands (${error.message}); use whiten in Python for this bundle`);
    }
    Object.assign(this, { most, characters, left: side === 'left' });
  }

  /** Return the token ids of a text, special tokens included, not cut. */
  tokenize(text) {
    const { ids } = this.backend.encode(text.toWellFormed());
    if (!ids.every(Number.isInteger)) throw new BundleError("the bundle's tokenizer has no id for a token of a text; use whiten in Python for this bundle");
    return ids;
  }

  /** Cut ids, keeping the special tokens that begin and end a text. */
  cut(ids) {
    const { most, prefix, suffix } = this;
    if (ids.length <= most) return ids;
    if (this.left) return [...ids.slice(0, prefix), ...ids.slice(ids.length - (most - prefix))];
    return [...ids.slice(0, most - suffix), ...ids.slice(ids.length - suffix)];
  }

  /** Return the ids of texts, each with its prompt, cut to what the bundle takes; or throw UsageError for a longer one. */
  encode(texts, prompted, truncate) {
    return texts.map((text, index) => {
      const short = part(text, this.characters, this.left);
      const ids = this.tokenize(prompted(short));
      if (!truncate && (short !== text || ids.length > this.most)) {
        const limit = short === text ? `${ids.length} tokens, but the bundle takes ${this.most}` : `more than the ${this.characters} characters that the bundle takes`;
        throw new UsageError(`texts[${index}] has ${limit}; shorten it, or pass truncate: true to cut it`);
      }
      return this.cut(ids);
    });
  }

  /** Return the number of tokens that a prompt alone takes, without the special tokens after it. */
  promptTokens(prompt) {
    return prompt ? this.cut(this.tokenize(prompt)).length - this.suffix : 0;
  }
}
