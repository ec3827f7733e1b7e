// Files of a bundle at an address: by fetch, kept in the Cache API where there is one.

import { shown } from './checks.js';
import { BundleError, IntegrityError, UsageError } from './errors.js';

const MANIFEST_BYTES = 16 << 20;
const CACHE = 'whiten';

/** Return the files of a bundle at an address. */
export function webFiles(location, { onProgress, cache = true, fetch = globalThis.fetch.bind(globalThis) }) {
  const root = addressOf(location);
  const where = (name) => new URL(name, root).href;
  const keyOf = (name, { sha256 }) => `${where(name)}?sha256=${sha256}`;
  const store = () => (cache && globalThis.caches ? caches.open(CACHE).catch(() => null) : null); // none in some private windows

  async function download(name, size) {
    let response;
    try {
      response = await fetch(where(name), { cache: 'no-cache' }); // asks whether it has changed
    } catch (error) {
      throw new BundleError(`${where(name)}: cannot be fetched (${error.message}); check the address and the network`);
    }
    if (!response.ok) {
      const why = response.status === 404 ? 'missing; the bundle is incomplete, or the address is another' : `the server says ${response.status}; try again`;
      throw new BundleError(`${where(name)}: ${why}`);
    }
    return received(response, name, size, where(name), onProgress);
  }

  return {
    where,
    manifest: () => download('whiten.json', MANIFEST_BYTES),
    /** Return a file's bytes, from the cache if they are there. */
    async read(name, record) {
      const hit = await (await store())?.match(keyOf(name, record));
      return hit ? new Uint8Array(await hit.arrayBuffer()) : download(name, record.bytes);
    },
    /** Put a file that was checked into the cache, unless that is full. */
    async keep(name, record, bytes) {
      const cached = await store();
      if (cached && !(await cached.match(keyOf(name, record)))) await cached.put(keyOf(name, record), new Response(bytes)).catch(() => {});
    },
  };
}

/** Return a response's bytes, of which there may be no more than `most`. */
async function received(response, name, most, where, onProgress) {
  const parts = [];
  let loaded = 0;
  try {
    for (const reader = response.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      loaded += value.length;
      if (name !== 'whiten.json') onProgress?.({ file: name, loaded, total: most });
      if (loaded > most) {
        await reader.cancel();
        throw new IntegrityError(`${where}: more than the ${most} bytes wanted; copy the bundle again`);
      }
    }
  } catch (error) {
    if (error instanceof BundleError) throw error;
    throw new BundleError(`${where}: the download broke off after ${loaded} of ${most} bytes (${error.message}); try again`);
  }
  const bytes = new Uint8Array(loaded);
  parts.reduce((place, part) => (bytes.set(part, place), place + part.length), 0);
  return bytes;
}

function addressOf(location) {
  try {
    const text = String(location);
    return new URL(text.endsWith('/') ? text : `${text}/`, globalThis.location?.href);
  } catch {
    throw new UsageError(`the bundle's address is ${shown(location)}; wanted a URL, such as 'https://example.org/bundles/minilm'`);
  }
}
