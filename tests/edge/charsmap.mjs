// Normalise texts by a map of characters: stdin {map, texts}.
import { readFileSync } from 'node:fs';
import { charsmap } from './node_modules/whiten/src/charsmap.js';

const { map, texts } = JSON.parse(readFileSync(0, 'utf8'));
process.stdout.write(JSON.stringify(texts.map(charsmap(map))));
