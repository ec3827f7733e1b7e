// Embed texts with transformers.js: stdin {bundle, texts}.
import { readFileSync } from 'node:fs';

process.env.ORT_DISABLE_TELEMETRY = '1';
const { env, pipeline } = await import('@huggingface/transformers');
env.allowRemoteModels = false;
const { bundle, texts } = JSON.parse(readFileSync(0, 'utf8'));
const extractor = await pipeline('feature-extraction', bundle);
const vectors = [];
for (const text of texts) vectors.push((await extractor(text)).tolist()[0][0]);
process.stdout.write(JSON.stringify(vectors));
