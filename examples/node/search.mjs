// Order the lines of a file by meaning: node search.mjs BUNDLE FILE "a question"
import { readFileSync } from 'node:fs';
import { WhitenError, open } from 'whiten';

const [bundle, file, question] = process.argv.slice(2);
if (!question) {
  console.error('usage: node search.mjs BUNDLE FILE QUESTION');
  process.exit(2);
}
try {
  const encoder = await open(bundle);
  const lines = readFileSync(file, 'utf8').split('\n').filter((line) => line.trim());
  const vectors = await encoder.encode(lines, { normalize: true });
  const wanted = await encoder.encode(question, { normalize: true });
  const scores = vectors.map((vector) => vector.reduce((sum, value, index) => sum + value * wanted[index], 0));
  const order = lines.map((_, index) => index).sort((a, b) => scores[b] - scores[a]);
  for (const index of order.slice(0, 5)) console.log(scores[index].toFixed(3), lines[index]);
} catch (error) {
  console.error(`search: ${error.message}`);
  process.exitCode = error instanceof WhitenError ? 1 : 2;
}
