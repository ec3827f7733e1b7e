// SentencePiece's compiled table of replacements, as XLM-RoBERTa, T5 and ALBERT have it: a double-array trie, then texts.

const SHORT = 6; // bytes of a grapheme from which its characters are looked up one by one

/**
 * Return the function that replaces by a table.
 * @param {string} table `precompiled_charsmap` of tokenizer.json, in base64
 */
export function precompiled(table) {
  const bytes = Uint8Array.from(atob(table), (character) => character.charCodeAt(0));
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const trie = new Uint32Array(bytes.slice(4, 4 + size).buffer);
  const texts = bytes.subarray(4 + size);
  const [encoder, decoder, segmenter] = [new TextEncoder(), new TextDecoder(), new Intl.Segmenter('en', { granularity: 'grapheme' })];
  const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
  const known = new Map();

  /** Return what the table has for the shortest beginning of these bytes that it knows, or null. */
  function found(key) {
    let place = offset(trie[0]);
    for (const byte of key) {
      if (byte === 0) return null;
      place ^= byte;
      const unit = trie[place];
      if ((unit & 0x800000ff) !== byte) return null;
      place ^= offset(unit);
      if (unit & 256) {
        const start = trie[place] & 0x7fffffff;
        return decoder.decode(texts.subarray(start, texts.indexOf(0, start)));
      }
    }
    return null;
  }

  function replaced(grapheme) {
    const key = encoder.encode(grapheme);
    const whole = key.length < SHORT ? found(key) : null;
    return whole ?? Array.from(grapheme, (character) => found(encoder.encode(character)) ?? character).join('');
  }

  return (text) => {
    let result = '';
    for (const { segment } of segmenter.segment(text)) {
      if (!known.has(segment)) {
        if (known.size > 4096) known.clear();
        known.set(segment, replaced(segment));
      }
      result += known.get(segment);
    }
    return result;
  };
}
