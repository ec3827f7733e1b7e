// Open bundles with onnxruntime-web, as a browser does, from files on disk: stdin {bundles}.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { open } from 'whiten/web';

const { bundles } = JSON.parse(readFileSync(0, 'utf8'));
const results = [];
for (const bundle of bundles) {
  const fetch = async (address) => new Response(readFileSync(join(bundle, new URL(address).pathname)));
  const encoder = await open('http://bundle.invalid/', { fetch, threads: 1 });
  const texts = ['A heron waits for a fish.', 'Banks raise interest rates.', 'one', 'a longer text about birds '.repeat(5)];
  const together = (await encoder.encode(texts)).map((row) => Array.from(row));
  const alone = [];
  for (const text of texts) alone.push(Array.from(await encoder.encode(text)));
  results.push({ ...(await encoder.verify()), precision: encoder.manifest.precision, together, alone });
  await encoder.close();
}
process.stdout.write(JSON.stringify(results));
