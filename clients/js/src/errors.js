// Errors: each message is one line that says what was found, what was wanted, and what to do.

/** Base class of every error that this package reports. */
export class WhitenError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/** An argument or option cannot be used as given. */
export class UsageError extends WhitenError {}

/** A text is no string, or a vector is not of finite numbers. */
export class TextError extends WhitenError {}

/** A text is longer than the bundle takes, and `truncate` is false. */
export class TooLongError extends WhitenError {}

/** A bundle is missing, incomplete or not a bundle, or gives vectors that are not finite. */
export class BundleError extends WhitenError {}

/** A file of a bundle differs from its manifest. */
export class IntegrityError extends BundleError {}

/** Vectors differ from those of the reference by more than the parity gate allows. */
export class ParityError extends WhitenError {}
