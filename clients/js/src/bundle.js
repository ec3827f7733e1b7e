// Read a bundle: whiten.json, files whose size and SHA-256 are compared with it, and files by fetch.

import { BundleError, UsageError, WhitenError, shown } from './errors.js';
import { DEFAULTS, FIELDS, FORMAT_VERSION, FORMER, NUMBERS, VALUES } from './tables.js';

const HASH = /("manifest_sha256"\s*:\s*")([0-9a-f]{64})"/;
const ALTERED = 'the copy is incomplete or was altered: copy the bundle again';

/** Reads the files of a bundle; `source` has `where(name)`, `read(name, bytes)` and perhaps `digest(name)`. */
export class Bundle {
  constructor(source, manifest) {
    Object.assign(this, { source, manifest });
  }

  /** Read whiten.json. */
  static async open(source) {
    const [where, bytes] = [source.where('whiten.json'), await source.read('whiten.json')];
    const text = new TextDecoder().decode(bytes);
    let fields;
    try {
      fields = JSON.parse(text);
    } catch (error) {
      throw new BundleError(`${where}: not JSON (${error.message}); ${ALTERED}`);
    }
    if (fields === null || typeof fields !== 'object' || Array.isArray(fields)) throw new BundleError(`${where}: no object of JSON; ${ALTERED}`);
    if (fields.format_version !== FORMAT_VERSION) {
      throw new BundleError(`${where}: bundle format ${shown(fields.format_version)}, but this version of whiten reads format ${FORMAT_VERSION}; upgrade whiten`);
    }
    const stated = HASH.exec(text)?.[2];
    if (stated && stated !== (await sha256(new TextEncoder().encode(text.replace(HASH, `$1${'0'.repeat(64)}"`))))) throw new BundleError(`${where}: its SHA-256 is not manifest_sha256; ${ALTERED}`);
    const manifest = { ...DEFAULTS, ...fields };
    checkFields(where, fields);
    for (const [name, known] of Object.entries(VALUES)) {
      if (!known.includes(manifest[name])) throw new BundleError(`${where}: ${name} is ${shown(manifest[name])}; wanted ${known.join(' or ')}; upgrade whiten`);
    }
    if (manifest.input !== 'text') throw new BundleError(`${where}: this bundle takes vectors, not texts; use whiten in Python for it`);
    const numbers = 'max_characters' in fields ? { ...NUMBERS, max_characters: 1 } : NUMBERS;
    for (const [name, least] of Object.entries(numbers)) {
      if (!Number.isInteger(manifest[name]) || manifest[name] < least) throw new BundleError(`${where}: ${name} is ${shown(manifest[name])}; wanted a whole number of at least ${least}; export the model again`);
    }
    return new Bundle(source, Object.freeze(manifest));
  }

  /** Return the content of a file that the manifest lists. */
  async bytes(name) {
    const bytes = await this.source.read(name, this.#record(name).bytes);
    this.#compare(name, await sha256(bytes));
    return bytes;
  }

  /** Return the parsed content of a file of JSON. */
  async json(name) {
    return JSON.parse(new TextDecoder().decode(await this.bytes(name)));
  }

  /** Compare a file that onnxruntime reads by itself. */
  async check(name) {
    this.#compare(name, await this.source.digest(name));
  }

  /** Return an array of a file of safetensors, all of whose arrays are of float64. */
  async array(name, key) {
    const bytes = await this.bytes(name);
    const size = 8 + Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, size)));
    const [start, end] = header[key].data_offsets;
    return new Float64Array(bytes.slice(size + start, size + end).buffer);
  }

  #record(name) {
    const record = this.manifest.files?.[name];
    if (!record) throw new BundleError(`${this.source.where('whiten.json')}: does not list ${name}; export the model again`);
    return record;
  }

  #compare(name, digest) {
    if (digest !== this.#record(name).sha256) throw new BundleError(`${this.source.where(name)}: its SHA-256 differs from whiten.json; ${ALTERED}`);
  }
}

/** Refuse a field that this version does not know: it may change vectors. */
function checkFields(where, value, place = '') {
  if (value === null || typeof value !== 'object') return;
  const known = FIELDS[place]?.split(' ');
  for (const [name, inner] of Object.entries(value)) {
    const path = place ? `${place}.${name}` : name;
    if (!known) checkFields(where, inner, `${place}.*`);
    else if (known.includes(name)) checkFields(where, inner, path);
    else if (Object.hasOwn(FORMER, path) && !FORMER[path].includes(inner)) throw new BundleError(`${where}: ${path} is ${shown(inner)}, which only versions of whiten before 0.5 read; export the model again`);
    else if (!Object.hasOwn(FORMER, path) && path !== 'manifest_sha256') throw new BundleError(`${where}: has the field ${shown(path)}, which this version of whiten does not know; upgrade whiten`);
  }
}

async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) throw new WhitenError('hashes cannot be checked, as this page is not a secure context; serve it by https or from localhost');
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

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
