// The entry for browsers: files by fetch, onnxruntime-web in wasm.

import { webFiles } from './bundle.js';
import { openWith } from './encoder.js';

export { BundleError, ParityError, UsageError, WhitenError } from './errors.js';
export { Encoder } from './encoder.js';

/** Open a bundle at an address: see index.d.ts. */
export function open(location, options) {
  return openWith({ files: webFiles, runtime, wasm: true }, location, options);
}

async function runtime({ threads, ort: given }) {
  const ort = given ?? (await import('onnxruntime-web'));
  if (threads !== undefined) ort.env.wasm.numThreads = threads;
  return { ort, executionProviders: ['wasm'], graphOptimizationLevel: 'all', logSeverityLevel: 3 };
}
