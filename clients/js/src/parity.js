// Compare vectors with those of the reference, and hold the gate that Python holds (docs/bundle-format.md).

import { ParityError } from './errors.js';

const GATES = {
  fp32: { minCosine: 0.999999, meanCosine: 0.999999, maxDifference: 1e-4 },
  fp16: { minCosine: 0.9999, meanCosine: 0.9999, maxNormError: 0.02 },
  int8: { minCosine: 0.98, meanCosine: 0.99, maxNormError: 0.1, meanNormError: 0.05, maxNormBias: 0.02 },
};
const ROUNDING = 1e-3; // what rounding to int8 may cost a cosine
const STEPPED = 0.01; // share of coordinates that fp32 may round to another step

/** Return the bounds for a precision of the network and a type of the finished vectors. */
export function gateOf(precision, vectors) {
  const gate = GATES[precision];
  if (vectors === 'float32') return gate;
  const { minCosine, meanCosine, maxDifference } = gate;
  const less = (cosine) => Math.round((cosine - ROUNDING) * 1e6) / 1e6;
  return { minCosine: less(minCosine), meanCosine: less(meanCosine), maxDifference, maxStepped: precision === 'fp32' ? STEPPED : undefined };
}

/**
 * Compare vectors with their reference, in float64.
 * @param {ArrayLike<number>[]} got vectors of the graph
 * @param {Float64Array[]} want the reference's, before any rounding to int8
 * @param {string} vectors the manifest's `vectors`
 */
export function compare(got, want, vectors) {
  const pairs = got.map((row, index) => (vectors === 'int8' ? ofSteps(row, steps(want[index]), index) : ofFloats(row, want[index])));
  const values = (name) => pairs.map((pair) => pair[name]);
  const mean = (name) => values(name).reduce((sum, value) => sum + value, 0) / pairs.length;
  const floats = vectors !== 'int8';
  return {
    vectors: pairs.length,
    minCosine: Math.min(...values('cosine')),
    meanCosine: mean('cosine'),
    maxDifference: Math.max(...values('difference')),
    maxNormError: floats ? Math.max(...values('normError')) : null,
    meanNormError: floats ? mean('normError') : null,
    normBias: floats ? mean('normBias') : null,
    stepped: floats ? null : mean('stepped'),
  };
}

/** Throw ParityError if a bound is not kept. NaN keeps none. */
export function checkGate(agreement, gate, where) {
  const within = (value, bound) => bound === undefined || value === null || value <= bound;
  const passes =
    agreement.minCosine >= gate.minCosine && agreement.meanCosine >= gate.meanCosine &&
    within(agreement.maxDifference, gate.maxDifference) && within(agreement.maxNormError, gate.maxNormError) &&
    within(agreement.meanNormError, gate.meanNormError) && within(agreement.stepped, gate.maxStepped) &&
    within(agreement.normBias === null ? null : Math.abs(agreement.normBias), gate.maxNormBias);
  if (!passes) throw new ParityError(`${where}: not what the reference computed: ${JSON.stringify(agreement)}; wanted ${JSON.stringify(gate)}`);
  return agreement;
}

function norm(row) {
  return Math.sqrt(row.reduce((sum, value) => sum + value * value, 0));
}

function ofFloats(got, want) {
  const [a, b] = [norm(got), norm(want)];
  let squares = 0;
  let gap = 0;
  want.forEach((value, index) => {
    squares += (got[index] / (a || 1) - value / (b || 1)) ** 2;
    gap = Math.max(gap, Math.abs(got[index] - value));
  });
  const over = (value) => (b > 0 ? value / b : value === 0 ? 0 : Infinity);
  return { cosine: 1 - squares / 2, difference: over(gap), normError: over(Math.abs(a - b)), normBias: over(a - b) };
}

/** Scale a vector so that its largest magnitude is 127; nothing is rounded. */
function steps(row) {
  const largest = row.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-30);
  return row.map((value) => (value / largest) * 127);
}

function ofSteps(got, exact, index) {
  const largest = got.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  if (!got.every(Number.isInteger) || (largest !== 127 && largest !== 0)) {
    throw new ParityError(`vector ${index} is not of whole numbers whose largest magnitude is 127, though the vectors are int8; export the model again`);
  }
  let beyond = 0;
  let stepped = 0;
  exact.forEach((value, place) => {
    beyond = Math.max(beyond, Math.abs(got[place] - value) - 0.5);
    stepped += got[place] !== evenRound(value);
  });
  const length = norm(exact);
  return { ...ofFloats(got, exact), difference: length > 0 ? beyond / length : beyond && Infinity, stepped: stepped / exact.length };
}

function evenRound(value) {
  const low = Math.floor(value);
  return value - low === 0.5 ? low + (low & 1 ? 1 : 0) : Math.round(value);
}
