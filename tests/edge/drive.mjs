// Open a bundle, call methods, and print their results: stdin {bundle, options, calls: [[method, ...arguments]]}.
import { readFileSync } from 'node:fs';

const { bundle, options, calls, web } = JSON.parse(readFileSync(0, 'utf8'));
const { open } = await import(web ? 'whiten/web' : 'whiten');
const plain = (value) => {
  if (ArrayBuffer.isView(value)) return Array.from(value);
  return Array.isArray(value) ? value.map(plain) : (value ?? null);
};
const tried = async (call) => {
  try {
    return plain(await call());
  } catch (error) {
    return { error: error.name, message: error.message };
  }
};

let encoder;
const fetch = async (address) => new Response(readFileSync(bundle + new URL(address).pathname));
const opened = await tried(async () => { encoder = await (web ? open('http://bundle.invalid/', { fetch, threads: 1 }) : open(bundle, options)); });
const results = opened ? [opened] : [];
for (const [method, ...given] of encoder ? calls : []) results.push(await tried(() => encoder[method](...given)));
process.stdout.write(JSON.stringify(results));
