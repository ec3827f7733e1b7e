// Print the token ids of texts, cut: stdin {tokenizers: {name: {file, manifest}}, texts}.
import { readFileSync } from 'node:fs';
import { Tokenizer } from './node_modules/whiten/src/tokenizer.js';

const { tokenizers, texts } = JSON.parse(readFileSync(0, 'utf8'));
const ids = Object.entries(tokenizers).map(([name, { file, manifest }]) => {
  try {
    return [name, new Tokenizer(JSON.parse(readFileSync(file, 'utf8')), manifest).encode(texts, (text) => text, true)];
  } catch (error) {
    return [name, { error: error.name, message: error.message }];
  }
});
process.stdout.write(JSON.stringify(Object.fromEntries(ids)));
