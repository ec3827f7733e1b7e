// Plan batches of texts of similar length, and pad them.

/**
 * Group texts, longest first, so that little padding is computed.
 * @param {number[]} lengths number of tokens of each text
 * @param {number} budget padded tokens of a batch; a longer text is a batch of its own
 * @param {number} [most] texts of a batch
 * @returns {number[][]} indices of the texts of each batch
 */
export function planBatches(lengths, budget, most = Infinity) {
  const order = lengths.map((_, index) => index).sort((a, b) => lengths[b] - lengths[a] || a - b);
  const batches = [];
  for (let start = 0; start < order.length; ) {
    const rows = Math.min(most, Math.max(1, Math.floor(budget / Math.max(1, lengths[order[start]]))));
    batches.push(order.slice(start, (start += rows)));
  }
  return batches;
}

/**
 * Pad token ids on the right.
 * @param {number[][]} ids token ids of each text
 * @param {number} pad id of the padding token
 * @param {number} leftOut leading tokens that are left out of the pooling: their mask is 2
 * @returns ids and mask, BigInt64Array of `dims`
 */
export function padBatch(ids, pad, leftOut = 0) {
  const width = Math.max(1, ...ids.map((row) => row.length));
  const inputs = new BigInt64Array(ids.length * width).fill(BigInt(pad));
  const mask = new BigInt64Array(ids.length * width);
  ids.forEach((row, place) => {
    row.forEach((id, index) => {
      inputs[place * width + index] = BigInt(id);
      mask[place * width + index] = index < leftOut ? 2n : 1n;
    });
  });
  return { inputs, mask, dims: [ids.length, width] };
}
