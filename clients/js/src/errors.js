// Errors: each message is one line that says what was found, what was wanted, and what to do.

/** Base class of every error that this package reports. */
export class WhitenError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/** An argument or option cannot be used as given. */
export class UsageError extends WhitenError {}

/** A bundle is missing, incomplete, altered, or not a bundle. */
export class BundleError extends WhitenError {}

/** The probes get other vectors here than the reference gave them. */
export class ParityError extends WhitenError {}

/** Return a value in words, on one line. */
export function shown(value) {
  const line = (typeof value === 'string' ? `'${value}'` : String(JSON.stringify(value) ?? value)).replace(/\s+/g, ' ');
  return line.length <= 60 ? line : `${line.slice(0, 57)}...`;
}

/** Throw UsageError for a name that is not known. */
export function checkNames(given, known) {
  for (const name of Object.keys(given)) if (!known.includes(name)) throw new UsageError(`there is no option '${name}'; wanted ${known.join(', ')}`);
}

/** Return a whole number, or throw UsageError. */
export function wholeNumber(name, value, least, most = Infinity) {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new UsageError(`${name} is ${shown(value)}; wanted a whole number ${most === Infinity ? `of at least ${least}` : `from ${least} to ${most}`}`);
}
