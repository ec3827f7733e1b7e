// Turn texts into the token ids that Python gives.

import { Tokenizer as Backend } from '@huggingface/tokenizers';
import { BundleError, TooLongError } from './errors.js';
import { align, checkKnown } from './shims.js';

const TOKEN_CHARACTERS = 250; // for each token of the longest text; a text with more is cut before it is tokenised

/** Tokenises texts, and cuts long ones where Python does. */
export class Tokenizer {
  /**
   * @param {object} json content of tokenizer.json
   * @param {object} manifest of the bundle
   */
  constructor(json, { max_seq_length: most, truncation_side: side = 'right' }) {
    try {
      checkKnown(json);
      this.backend = new Backend(json, { unk_token: json.model.unk_token });
      align(this.backend, json);
      [this.prefix, this.suffix] = this.#ends();
    } catch (error) {
      if (error instanceof BundleError) throw error;
      throw new BundleError(`tokenizer.json: not a tokenizer that JavaScript understands (${error.message}); use whiten in Python for this bundle`);
    }
    if (most <= this.prefix + this.suffix) {
      throw new BundleError(`tokenizer.json: adds ${this.prefix + this.suffix} special tokens to a text, but the bundle takes ${most} in all; export the model again`);
    }
    this.most = most;
    this.side = side;
  }

  /** Return the token ids of a text, special tokens included, not truncated. */
  tokenize(text) {
    try {
      const { ids } = this.backend.encode(text.toWellFormed());
      if (ids.every(Number.isInteger)) return ids;
    } catch (error) {
      throw new BundleError(`the bundle's tokenizer fails (${error.message}); leave this text out`);
    }
    throw new BundleError("the bundle's tokenizer has no id for a token of a text; export the model again");
  }

  /** Truncate ids, keeping the special tokens that begin and end a text. */
  cut(ids) {
    const { most, prefix, suffix } = this;
    if (ids.length <= most) return ids;
    if (this.side === 'left') return [...ids.slice(0, prefix), ...ids.slice(ids.length - (most - prefix))];
    return [...ids.slice(0, most - suffix), ...ids.slice(ids.length - suffix)];
  }

  /**
   * Return the ids of texts with a prompt, cut to what the bundle takes.
   * @param {string[]} texts
   * @param {(text: string) => string} prompted puts the prompt before a text, or around it
   * @param {boolean} truncate cut longer texts, or throw TooLongError
   */
  encode(texts, prompted, truncate) {
    return texts.map((text, index) => {
      const short = this.#bounded(text);
      const ids = this.tokenize(prompted(short));
      if (!truncate && (short !== text || ids.length > this.most)) {
        throw new TooLongError(`texts[${index}] has ${ids.length} tokens${short === text ? '' : ' or more'}, but the bundle takes ${this.most}; shorten it, or pass truncate: true to cut it`);
      }
      return this.cut(ids);
    });
  }

  /** Return the number of tokens that a prompt alone takes, without the special tokens after it. */
  promptTokens(prompt) {
    return prompt ? this.cut(this.tokenize(prompt)).length - this.suffix : 0;
  }

  /** Cut a text of too many characters; Python counts code points. */
  #bounded(text) {
    const most = TOKEN_CHARACTERS * this.most;
    if (text.length <= most) return text;
    const characters = Array.from(text.toWellFormed());
    if (characters.length <= most) return text;
    return (this.side === 'left' ? characters.slice(-most) : characters.slice(0, most)).join('');
  }

  /** Return the number of special tokens before a text, and of those after it. */
  #ends() {
    const mark = '\0';
    const tokens = this.backend.post_processor?.([mark], null, true).tokens ?? [mark];
    const place = tokens.indexOf(mark);
    return [place, tokens.length - place - 1];
  }
}
