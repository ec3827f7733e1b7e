// Files of a bundle by fetch, for both entries.

import { BundleError, UsageError, shown } from './errors.js';

/** Return the files of a bundle at an address. */
export function webFiles(location, { onProgress, fetch = globalThis.fetch }) {
  const text = String(location);
  const base = globalThis.location?.href;
  if (!URL.canParse(text, base)) throw new UsageError(`the bundle's address is ${shown(location)}; wanted a URL, such as 'https://example.org/bundles/minilm'`);
  const root = new URL(text.endsWith('/') ? text : `${text}/`, base);
  const where = (name) => new URL(name, root).href;

  async function read(name, total) {
    try {
      const response = await fetch(where(name), { cache: 'no-cache' }); // asks whether it has changed
      if (!response.ok) throw new Error(`the server says ${response.status}`);
      let loaded = 0;
      const counted = new TransformStream({
        transform(part, controller) {
          loaded += part.length;
          if (total) onProgress?.({ file: name, loaded, total });
          controller.enqueue(part);
        },
      });
      return new Uint8Array(await new Response(response.body.pipeThrough(counted)).arrayBuffer());
    } catch (error) {
      throw new BundleError(`${where(name)}: cannot be fetched (${error.message}); check the address and the network`);
    }
  }
  return { where, read };
}
