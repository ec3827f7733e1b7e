// Read and check whiten.json.

import { shown } from './checks.js';
import { BundleError, IntegrityError } from './errors.js';
import { problemOf } from './schema.js';

export const FORMAT_VERSION = 1;
const HASH = /"manifest_sha256"\s*:\s*"([0-9a-f]{64})"/;
const NESTED = ['pca', 'pca-cor'];

/**
 * Parse and check the bytes of whiten.json.
 * @param {Uint8Array} bytes content of the file
 * @param {string} where its place, for messages
 * @returns the manifest, with the values of absent fields
 */
export async function parseManifest(bytes, where) {
  let text, fields;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    fields = JSON.parse(text);
  } catch (error) {
    throw new BundleError(`${where}: not a manifest (${error.message}); export the model again`);
  }
  const version = fields?.format_version;
  if (version !== FORMAT_VERSION) {
    const advice = version > FORMAT_VERSION ? 'upgrade whiten' : 'export the model again';
    throw new BundleError(`${where}: bundle format ${shown(version)}, but this version of whiten reads format ${FORMAT_VERSION}; ${advice}`);
  }
  const twice = fieldThereTwice(text);
  if (twice !== null) throw new BundleError(`${where}: the field '${twice}' is there twice; export the model again`);
  const stated = fields.manifest_sha256 ?? null;
  if (stated !== null) await checkHash(text, stated, where);
  delete fields.manifest_sha256;
  const problem = problemOf(fields);
  if (problem?.unknown) throw new BundleError(`${where}: has the field '${problem.unknown}', which this version of whiten does not know; upgrade whiten`);
  if (problem) throw new BundleError(`${where}: ${problem.problem}; upgrade whiten, or export the model again`);
  checkValues(fields, where);
  return {
    input: 'text', include_prompt: true, prompts: {}, default_prompt_name: null, truncation_side: 'right', route: null,
    similarity_fn_name: 'cosine', matryoshka_dimensions: [], outputs: 'whitened', vectors: 'float32', ...fields,
  };
}

/** Return whether the first m coordinates of a vector are the vector whitened to m dimensions. */
export function isNested({ whitening }) {
  return whitening !== null && NESTED.includes(whitening?.method) && !whitening.alignment;
}

/** Return the SHA-256 of bytes, in hexadecimal digits. */
export async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) {
    throw new BundleError('hashes cannot be checked, as this page is not a secure context; serve it by https or from localhost');
  }
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

async function checkHash(text, stated, where) {
  const place = HASH.exec(text);
  const zeroed = place && text.slice(0, place.index) + place[0].replace(place[1], '0'.repeat(64)) + text.slice(place.index + place[0].length);
  const found = zeroed && (await sha256(new TextEncoder().encode(zeroed)));
  if (found !== stated) {
    throw new IntegrityError(
      `${where}: manifest_sha256 is ${shown(stated)}, but the file's own is ${found ?? 'none'}; it was altered: ` +
        'copy the bundle again, or, if you edited it on purpose, delete the line of manifest_sha256');
  }
}

/** Return the name of a field that an object of a JSON text has twice, or null; `JSON.parse` takes the last one. */
function fieldThereTwice(text) {
  const open = [];
  for (const { 0: token, index } of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}]/g)) {
    if (token === '{') open.push(new Set());
    else if (token === '}') open.pop();
    else if (/^\s*:/.test(text.slice(index + token.length, index + token.length + 20))) {
      const name = JSON.parse(token);
      if (open.at(-1).has(name)) return name;
      open.at(-1).add(name);
    }
  }
  return null;
}

function checkValues(fields, where) {
  const refuse = (words) => { throw new BundleError(`${where}: ${words}; export the model again`); };
  for (const name of Object.keys(fields.files)) {
    if (!name || /^\/|\\|:|[\p{Cc}\p{Cf}]/u.test(name) || name.split('/').includes('..')) refuse(`file name ${shown(name)} would leave the bundle`);
  }
  const least = { dimension: 1, max_seq_length: fields.input === 'vectors' ? 0 : 1, pad_token_id: 0 };
  for (const [name, bound] of Object.entries(least)) if (fields[name] < bound) refuse(`${name} is ${fields[name]}, which must be at least ${bound}`);
  const name = fields.default_prompt_name ?? null;
  if (name !== null && !Object.hasOwn(fields.prompts ?? {}, name)) refuse(`default_prompt_name is '${name}', which is not one of its prompts`);
  if (fields.vectors === 'int8' && (fields.normalize || (fields.similarity_fn_name ?? 'cosine') !== 'cosine')) {
    refuse('its vectors are int8, which keep cosines alone, but it is normalized or has another similarity');
  }
  const wanted = ['onnx/model.onnx', ...(fields.input === 'vectors' ? [] : ['tokenizer.json'])];
  for (const file of wanted) if (!Object.hasOwn(fields.files, file)) refuse(`does not list ${file}`);
}
