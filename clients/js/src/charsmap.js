// Normalise texts by the map of characters of a tokenizer of SentencePiece (XLM-R, T5), as Rust's tokenizers do:
// @huggingface/tokenizers puts Unicode's NFKC in its place, which composes Hangul and half-width kana.

const SHORT = 6; // bytes of UTF-8 from which on a grapheme is replaced character by character
const decoder = new TextDecoder();
const encoder = new TextEncoder();

/** Return the function of a map, in base64: the bytes of a trie after their number, and the replacements, each ended by 0. */
export function charsmap(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const trie = Uint32Array.from({ length: size / 4 }, (_, index) => new DataView(bytes.buffer).getUint32(4 + 4 * index, true));
  const replacements = bytes.subarray(4 + size);
  const segmenter = new Intl.Segmenter('en', { granularity: 'grapheme' });
  const known = new Map();

  /** Return the replacement of the shortest beginning of a text that the map has; undefined if it has none. */
  function replacement(text) {
    let place = offset(trie[0]);
    for (const byte of encoder.encode(text)) {
      if (byte === 0) return undefined;
      place ^= byte;
      const unit = trie[place];
      if ((unit & 0x800000ff) !== byte) return undefined;
      place ^= offset(unit);
      if ((unit >>> 8) & 1) {
        const start = trie[place] & 0x7fffffff;
        return decoder.decode(replacements.subarray(start, replacements.indexOf(0, start)));
      }
    }
    return undefined;
  }

  function replaced(grapheme) {
    const whole = encoder.encode(grapheme).length < SHORT ? replacement(grapheme) : undefined;
    return whole ?? Array.from(grapheme, (character) => replacement(character) ?? character).join('');
  }

  return (text) => {
    let result = '';
    for (const { segment } of segmenter.segment(text)) {
      let part = known.get(segment);
      if (part === undefined) {
        part = replaced(segment);
        if (known.size < 10_000) known.set(segment, part);
      }
      result += part;
    }
    return result;
  };
}

function offset(unit) {
  return (unit >>> 10) << ((unit & 512) >>> 6);
}
