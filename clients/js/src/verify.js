// Prove a bundle: its files are those of the manifest, and its vectors those of the reference.

import { BundleError } from './errors.js';
import { checkGate, compare, gateOf } from './parity.js';
import { readArrays, rowOf } from './safetensors.js';

const [PROBES, VECTORS] = ['probes.json', 'probes.safetensors'];

/**
 * Compare files with the manifest, and the probes' vectors, alone and together, with the reference's.
 * @param files of the bundle, whose SHA-256 are compared
 * @param {string[]} names of the files
 * @param tokenizer of the bundle; null if it takes vectors
 * @param embed returns the vectors of token ids, or of vectors
 * @returns the agreement, if the parity gate is kept
 */
export async function prove(files, names, tokenizer, embed) {
  const { manifest } = files;
  const where = files.files.where(VECTORS);
  for (const name of names) if (name !== PROBES && name !== VECTORS) await files.bytes(name);
  if (!names.includes(VECTORS)) throw new BundleError(`${where}: not in the bundle, so nothing can be proven; export the model again`);
  const arrays = readArrays(await files.bytes(VECTORS), where, ['embeddings', 'unwhitened']);
  const items = arrays && (tokenizer ? await idsOf(files, tokenizer) : rowsOf(arrays.unwhitened));
  if (!items?.length || `${arrays.embeddings.shape}` !== `${[items.length, manifest.dimension]}`) {
    throw new BundleError(`${where}: does not hold a vector of ${manifest.dimension} numbers for each probe; copy the bundle again`);
  }
  const alone = [];
  for (const item of items) alone.push(...(await embed([item])));
  const want = rowsOf(arrays.embeddings);
  const agreement = compare([...(await embed(items)), ...alone], [...want, ...want], manifest.vectors);
  return checkGate(agreement, gateOf(manifest.precision, manifest.vectors), files.files.where(''));
}

async function idsOf(files, tokenizer) {
  const { texts } = await files.json(PROBES);
  return tokenizer.encode(texts, (text) => text, true);
}

function rowsOf(array) {
  return Array.from({ length: array.shape[0] }, (_, index) => rowOf(array, index));
}
