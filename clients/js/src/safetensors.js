// Read float64 arrays from a file of safetensors.

import { BundleError } from './errors.js';

/**
 * @param {Uint8Array} bytes content of the file
 * @param {string} where its place, for messages
 * @param {string[]} names arrays wanted
 * @returns object of {shape, data: Float64Array} by name; null if one of them is not there
 */
export function readArrays(bytes, where, names) {
  try {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const length = Number(view.getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
    if (names.some((name) => !(name in header))) return null;
    return Object.fromEntries(names.map((name) => [name, arrayOf(header[name], bytes.subarray(8 + length))]));
  } catch (error) {
    throw new BundleError(`${where}: is damaged (${error.message}); copy the bundle again`);
  }
}

function arrayOf({ dtype, shape, data_offsets: [start, end] }, bytes) {
  const size = shape.reduce((product, length) => product * length, 8);
  if (dtype !== 'F64' || end - start !== size || end > bytes.length) throw new Error(`an array of ${dtype} ${shape}; wanted F64`);
  const data = new Float64Array(bytes.slice(start, end).buffer); // a copy: it may not begin at a multiple of 8
  if (!data.every(Number.isFinite)) throw new Error('a number is not finite');
  return { shape, data };
}

/** Return row `index` of an array [n, k]. */
export function rowOf({ shape, data }, index) {
  return data.subarray(index * shape[1], (index + 1) * shape[1]);
}
