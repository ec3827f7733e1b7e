// The entry for Node: files from a folder or by fetch, onnxruntime-node.

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { webFiles } from './bundle.js';
import { openWith } from './encoder.js';
import { BundleError, UsageError, WhitenError, shown } from './errors.js';

export { BundleError, ParityError, UsageError, WhitenError } from './errors.js';
export { Encoder } from './encoder.js';

/** Open a bundle in a folder, or at an address: see index.d.ts. */
export function open(location, options) {
  return openWith({ files: /^https?:/.test(String(location)) ? webFiles : folderFiles, runtime }, location, options);
}

async function runtime({ threads, ort: given }) {
  process.env.ORT_DISABLE_TELEMETRY ??= '1'; // before the import: onnxruntime reads it once
  const ort = given ?? (await import('onnxruntime-node').catch((error) => {
    throw new WhitenError(`onnxruntime-node cannot be loaded (${error.message}); install it with ONNXRUNTIME_NODE_INSTALL=skip npm install onnxruntime-node`);
  }));
  const counts = { intraOpNumThreads: threads ?? availableParallelism(), interOpNumThreads: 1 };
  return { ort: ort.default ?? ort, ...counts, enableMemPattern: false, graphOptimizationLevel: 'all', logSeverityLevel: 3 };
}

function folderFiles(location) {
  if (!location || !(typeof location === 'string' || location instanceof URL)) throw new UsageError(`the bundle is ${shown(location)}; wanted a folder or a URL`);
  const root = String(location).startsWith('file:') ? fileURLToPath(location) : resolve(location);
  const where = (name) => join(root, name);
  const failed = (name) => (error) => {
    if (error.code === 'ENOENT' && name === 'whiten.json') throw new BundleError(`'${root}' is not a whiten bundle: it has no whiten.json; make one with whiten-export, or check the path`);
    throw new BundleError(`${where(name)}: ${error.code === 'ENOENT' ? 'missing' : `cannot be read (${error.message})`}; copy the bundle again`);
  };
  const digest = async (name) => {
    const hash = createHash('sha256');
    for await (const piece of createReadStream(where(name))) hash.update(piece);
    return hash.digest('hex');
  };
  return { where, read: (name) => readFile(where(name)).then((content) => new Uint8Array(content), failed(name)), digest: (name) => digest(name).catch(failed(name)) };
}
