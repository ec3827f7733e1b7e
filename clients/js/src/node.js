// The entry for Node: files from a folder or by fetch, onnxruntime-node.

import { shown } from './checks.js';
import { BundleError, IntegrityError, UsageError, WhitenError } from './errors.js';
import { CLIENT_FILES, FUSIONS, openWith } from './encoder.js';
import { webFiles } from './web-files.js';

export * from './errors.js';
export { Encoder } from './encoder.js';

const [fs, path, { createHash }, { fileURLToPath }] = ['fs', 'path', 'crypto', 'url'].map((name) => process.getBuiltinModule(`node:${name}`));
const MANIFEST_BYTES = 16 << 20;

/** Open a bundle in a folder, or at an address: see index.d.ts. */
export function open(location, options) {
  const remote = /^https?:/.test(String(location));
  return openWith({ files: remote ? webFiles : folderFiles, runtime }, location, options);
}

async function runtime({ threads, ort: given }) {
  process.env.ORT_DISABLE_TELEMETRY ??= '1'; // before the import: onnxruntime reads it once
  const ort = given ?? (await import('onnxruntime-node').catch((error) => {
    throw new WhitenError(`onnxruntime-node cannot be loaded (${error.message}); install it with ONNXRUNTIME_NODE_INSTALL=skip npm install onnxruntime-node`);
  }));
  return {
    ort: ort.default ?? ort,
    intraOpNumThreads: threads ?? process.getBuiltinModule('node:os').availableParallelism(),
    interOpNumThreads: 1,
    enableMemPattern: false,
    graphOptimizationLevel: 'all',
    logSeverityLevel: 3,
    extra: { session: { force_spinning_stop: '1', load_model_format: 'ONNX' }, optimization: FUSIONS },
  };
}

function folderFiles(location) {
  if (!(typeof location === 'string' && location) && !(location instanceof URL)) throw new UsageError(`the bundle is ${shown(location)}; wanted a folder or a URL`);
  const root = String(location).startsWith('file:') ? fileURLToPath(location) : path.resolve(String(location));
  const where = (name) => path.join(root, name);

  /** Open a regular file, and give it to `use`; a pipe or a device is refused. */
  async function opened(name, use) {
    let handle;
    try {
      if (!(await fs.promises.stat(where(name))).isFile()) throw new Error('not a regular file');
      handle = await fs.promises.open(where(name));
      const { size } = await handle.stat();
      return await use(handle, size);
    } catch (error) {
      if (error instanceof WhitenError) throw error;
      if (error.code !== 'ENOENT') throw new BundleError(`${where(name)}: cannot be read (${error.message}); check it and its permissions`);
      throw new BundleError(name === 'whiten.json'
        ? `'${root}' is not a whiten bundle: it has no whiten.json; make one with whiten-export, or check the path`
        : `${where(name)}: missing, though whiten.json lists it; the copy is incomplete: copy the bundle again`);
    } finally {
      await handle?.close();
    }
  }

  const content = (name, most) => opened(name, async (handle, size) => {
    if (size > most) throw new IntegrityError(`${where(name)}: ${size} bytes, but at most ${most} are wanted; the file was altered: copy the bundle again`);
    return new Uint8Array(await handle.readFile());
  });

  return {
    where,
    manifest: () => content('whiten.json', MANIFEST_BYTES),
    read: (name, { bytes }) => content(name, bytes),
    graph: async (name) => where(name),
    /** Compare all files with the manifest, read in pieces. */
    async checkAll(checked) {
      for (const name of Object.keys(checked.manifest.files)) {
        await opened(name, async (handle, size) => {
          if (CLIENT_FILES.includes(name)) return;
          checked.check(name, size, null);
          if (checked.hashed) checked.check(name, size, await digestOf(handle));
        });
      }
    },
  };
}

async function digestOf(handle) {
  const digest = createHash('sha256');
  for await (const piece of handle.createReadStream({ autoClose: false })) digest.update(piece);
  return digest.digest('hex');
}
