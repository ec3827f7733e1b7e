// Check, normalise and quantise vectors.

import { shown } from './checks.js';
import { BundleError, TextError, UsageError } from './errors.js';

const DEVIATIONS = 5.5; // from the mean to either end of a range, as in Python
export const PRECISIONS = ['float32', 'int8', 'uint8', 'binary', 'ubinary'];

/** Throw BundleError if a vector that the graph gave holds an infinite number or NaN. */
export function checkGiven(rows, what) {
  const index = rows.findIndex((row) => !row.every(Number.isFinite));
  if (index >= 0) {
    throw new BundleError(`${what}[${index}] gets a vector from this bundle that is not finite; leave it out, or export the model again with --precision fp32`);
  }
}

/** Return a vector divided by its L2 norm; one of zeros stays. */
export function unit(row) {
  let squares = 0;
  for (const value of row) squares += value * value;
  const norm = Math.sqrt(squares) || 1;
  return Float32Array.from(row, (value) => value / norm);
}

/**
 * Return a function that quantises a vector as Python's `Encoder.encode(precision=...)` does.
 * @param {string} precision int8, uint8, binary or ubinary
 * @param {Float32Array[]|null} ranges lower and upper ends of the coordinates, for int8 and uint8
 */
export function quantizer(precision, ranges) {
  const signed = precision === 'int8' || precision === 'binary';
  const codes = ranges ? (row) => levels(row, ranges) : signs;
  return signed ? (row) => Int8Array.from(codes(row), (code) => code - 128) : codes;
}

function levels(row, [lower, upper]) {
  const { fround } = Math;
  return Uint8Array.from(row, (value, index) => {
    const step = fround(fround(upper[index] - lower[index]) / 255) || 1;
    return Math.min(255, Math.max(0, Math.floor(fround(fround(value - lower[index]) / step))));
  });
}

function signs(row) {
  const codes = new Uint8Array(Math.ceil(row.length / 8));
  row.forEach((value, index) => { if (value > 0) codes[index >> 3] |= 128 >> (index & 7); });
  return codes;
}

/** Return whole numbers of a bundle of int8 vectors as int8. */
export function asInt8(row) {
  const codes = Int8Array.from(row);
  if (codes.some((code, index) => code !== row[index] || code === -128)) throw new BundleError('a vector is not of whole numbers from -127 to 127, though the bundle says so; export it again');
  return codes;
}

/** Return a caller's ranges as two Float32Array of `width` numbers. */
export function checkedRanges(ranges, width) {
  const found = Array.from(ranges, (ends) => Float32Array.from(ends));
  if (found.length !== 2 || found.some((ends) => ends.length !== width)) {
    throw new UsageError(`ranges have shape [${found.length}, ${found[0]?.length}]; wanted [2, ${width}]: lower ends, then upper ends`);
  }
  const place = found[0].findIndex((lower, index) => !(Number.isFinite(Math.fround(found[1][index] - lower)) && found[1][index] >= lower));
  if (place >= 0) throw new UsageError(`ranges at ${place} are ${found[0][place]} and ${found[1][place]}; wanted finite numbers, the lower first`);
  return found;
}

/** Return mean and variance of a bundle's finished vectors over its corpus, from the arrays of whitening.safetensors. */
export function momentsOf({ mean, W, corpus_mean: corpus, covariance }) {
  const [d, k] = W.shape;
  const centre = new Float64Array(k);
  const variance = new Float64Array(k);
  const image = new Float64Array(k);
  for (let i = 0; i < d; i++) {
    image.fill(0);
    for (let j = 0; j < d; j++) for (let c = 0, s = covariance.data[i * d + j]; c < k; c++) image[c] += s * W.data[j * k + c];
    for (let c = 0; c < k; c++) {
      variance[c] += W.data[i * k + c] * image[c];
      centre[c] += (corpus.data[i] - mean.data[i]) * W.data[i * k + c];
    }
  }
  return { mean: centre, variance: variance.map((value) => Math.max(0, value)) };
}

/** Return the ranges that int8 and uint8 divide into 255 steps, of the first `width` coordinates. */
export function rangesOf(moments, width, normalized) {
  const mean = moments.mean.slice(0, width);
  const variance = moments.variance.slice(0, width);
  const norm = (normalized && Math.sqrt(variance.reduce((sum, value, index) => sum + value + mean[index] ** 2, 0))) || 1;
  const end = (sign) => Float32Array.from(mean, (value, index) => (value + sign * DEVIATIONS * Math.sqrt(variance[index])) / norm);
  return [end(-1), end(1)];
}

/** Return given vectors as rows of `width` finite float32 numbers. */
export function givenRows(vectors, width) {
  return Array.from(vectors, (vector, index) => {
    const row = vector?.length === undefined || typeof vector === 'string' ? null : Float32Array.from(vector);
    if (row === null) throw new TextError(`vectors[${index}] is ${shown(vector)}; wanted an array of ${width} numbers`);
    if (row.length !== width) throw new UsageError(`vectors[${index}] has ${row.length} numbers; this bundle takes ${width}`);
    if (!row.every(Number.isFinite)) throw new TextError(`vectors[${index}] is not finite; leave it out`);
    return row;
  });
}
