/** Precision of the numbers of a vector; with the last two, eight signs are a byte. */
export type Precision = 'float32' | 'int8' | 'uint8' | 'binary' | 'ubinary';

/** A vector: [k], or [k / 8] rounded up for "binary" and "ubinary". */
export type Vector<P extends Precision = 'float32'> =
  P extends 'float32' ? Float32Array : P extends 'int8' | 'binary' ? Int8Array : Uint8Array;

export interface OpenOptions {
  /** Threads of a call; by default all processors in Node, and what onnxruntime-web chooses in browsers. */
  threads?: number;
  /** Compare the SHA-256 of files with whiten.json before they are used; true by default. Sizes are always compared. */
  verifyHashes?: boolean;
  /** Prove now, with the bundle's probes, that this machine computes what the reference computed; false by default. */
  verify?: boolean;
  /** Is called while a file is downloaded; `total` is its size in bytes. */
  onProgress?: (progress: { file: string; loaded: number; total: number }) => void;
  /** Keep downloaded files in the browser's Cache API, under the name "whiten"; true by default. */
  cache?: boolean;
  /** A function in place of `fetch`, for instance to send a token. */
  fetch?: typeof fetch;
  /** The module of onnxruntime to use, in place of onnxruntime-node or onnxruntime-web. */
  ort?: unknown;
  /** Further options of onnxruntime's session, which go before those of this package. */
  sessionOptions?: Record<string, unknown>;
}

export interface VectorOptions<P extends Precision = 'float32'> {
  /** Keep only the first coordinates; only where the bundle is whitened with pca or pca-cor, or was trained for it. */
  truncateDim?: number;
  /** Divide each vector by its L2 norm, after `truncateDim`. */
  normalize?: boolean;
  precision?: P;
  /** Lower and upper ends of the coordinates, for "int8" and "uint8"; by default those of the bundle's corpus. */
  ranges?: [ArrayLike<number>, ArrayLike<number>];
  /** Most texts, or vectors, of one run. */
  batchSize?: number;
}

export interface EncodeOptions<P extends Precision = 'float32'> extends VectorOptions<P> {
  /** Name of one of the bundle's prompts; by default its default one. */
  promptName?: string | null;
  /** The prompt itself, put before each text, or around it if it contains "{text}"; an empty string for none. */
  prompt?: string | null;
  /** Cut texts that are too long; true by default. If false, they are a TooLongError. */
  truncate?: boolean;
}

/** How far vectors are from their reference; see docs/bundle-format.md for the bounds. */
export interface Agreement {
  vectors: number;
  minCosine: number;
  meanCosine: number;
  /** Largest difference of a coordinate over the norm of the reference; of int8 vectors, beyond half a step. */
  maxDifference: number;
  maxNormError: number | null;
  meanNormError: number | null;
  normBias: number | null;
  /** Of int8 vectors, the share of coordinates that are not the reference's, rounded. */
  stepped: number | null;
}

/** Embeds texts with a bundle. */
export class Encoder {
  /** Content of whiten.json, as docs/bundle-format.md describes it. */
  readonly manifest: Readonly<Record<string, any>>;
  /** Number of coordinates of a vector. */
  readonly dimension: number;
  /** Prompts by name. */
  readonly prompts: Readonly<Record<string, string>>;
  /** Embed a text. The same vector as Python's `Encoder.encode` gives. */
  encode<P extends Precision = 'float32'>(text: string, options?: EncodeOptions<P>): Promise<Vector<P>>;
  /** Embed texts, in order. No vector depends on the other texts. */
  encode<P extends Precision = 'float32'>(texts: Iterable<string>, options?: EncodeOptions<P>): Promise<Vector<P>[]>;
  /** Embed a query, or queries: `encode` with the prompt "query", or with none if the bundle has no such; a default template stays. */
  encodeQuery: Encoder['encode'];
  /** Embed documents: `encode` with the prompt "document", else "passage", else "corpus", else as `encodeQuery`. */
  encodeDocument: Encoder['encode'];
  /** Whiten vectors, with a bundle that takes vectors in place of texts. */
  transform<P extends Precision = 'float32'>(vectors: Iterable<ArrayLike<number>>, options?: VectorOptions<P>): Promise<Vector<P>[]>;
  /** Compare every file with whiten.json, and the vectors of the probes, alone and together, with the reference's. Throws IntegrityError or ParityError. */
  verify(): Promise<Agreement>;
  /** Return the number of tokens of a text, special tokens included, before truncation. */
  tokenCount(text: string): number;
  /** Free the graph. */
  close(): Promise<void>;
}

/**
 * Open a bundle in a folder (Node) or at an address (Node and browsers).
 * Throws BundleError if it is none, IntegrityError if a file differs from whiten.json, UsageError for a wrong option.
 */
export function open(location: string | URL, options?: OpenOptions): Promise<Encoder>;

/** Base class of every error of this package; each message is one line. */
export class WhitenError extends Error {}
/** An argument or option cannot be used as given. */
export class UsageError extends WhitenError {}
/** A text is no string, or a given vector is not of finite numbers. */
export class TextError extends WhitenError {}
/** A text is longer than the bundle takes, and `truncate` is false. */
export class TooLongError extends WhitenError {}
/** A bundle is missing, incomplete or not a bundle, or gives vectors that are not finite. */
export class BundleError extends WhitenError {}
/** A file of a bundle differs from its manifest. */
export class IntegrityError extends BundleError {}
/** Vectors differ from those of the reference by more than the parity gate allows. */
export class ParityError extends WhitenError {}
