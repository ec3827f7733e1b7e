// Show and check values of callers.

import { UsageError } from './errors.js';

/** Return a value in words, on one line. */
export function shown(value) {
  const text = typeof value === 'string' ? `'${value}'` : String(JSON.stringify(value) ?? value);
  const line = text.replace(/\s+/g, ' ');
  return line.length <= 60 ? line : `${line.slice(0, 57)}...`;
}

/** Return a whole number, or throw UsageError. */
export function wholeNumber(name, value, least, most = Infinity) {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  const wanted = most === Infinity ? `of at least ${least}` : `from ${least} to ${most}`;
  throw new UsageError(`${name} is ${shown(value)}; wanted a whole number ${wanted}`);
}
