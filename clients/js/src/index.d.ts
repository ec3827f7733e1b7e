export interface OpenOptions {
  /** Threads of a call; by default all processors in Node, and what onnxruntime-web chooses in browsers. */
  threads?: number;
  /** Embed the bundle's probes, and compare with the reference, before anything else; true by default. */
  verify?: boolean;
  /** Is called while a file is downloaded; `total` is its size in bytes. */
  onProgress?: (progress: { file: string; loaded: number; total: number }) => void;
  /** A function in place of `fetch`, for instance to send a token. */
  fetch?: typeof fetch;
  /** The module of onnxruntime to use, and further options of its session. */
  ort?: unknown;
  sessionOptions?: Record<string, unknown>;
}

export interface EncodeOptions {
  /** Name of one of the bundle's prompts, or the prompt itself; by default the bundle's default one, and "" for none. */
  promptName?: string | null;
  prompt?: string | null;
  /** Keep only the first coordinates; only where the bundle is whitened with pca or pca-cor, or was trained for it. */
  truncateDim?: number;
  /** Divide each vector by its L2 norm, after `truncateDim`. */
  normalize?: boolean;
  /** Cut texts that are too long; true by default. If false, they are a UsageError. */
  truncate?: boolean;
}

/** How far the probes' vectors are from the reference: cosines, the largest difference of a coordinate over the norm, and relative errors of norms. */
export type Agreement = { vectors: number; minCosine: number; meanCosine: number; maxDifference: number; maxNormError: number; meanNormError: number; normBias: number };

export class Encoder {
  /** Content of whiten.json, as docs/bundle-format.md describes it. */
  readonly manifest: Readonly<Record<string, any>>;
  /** Number of coordinates of a vector. */
  readonly dimension: number;
  /** Embed a text, or texts in order. No vector depends on the other texts. */
  encode(text: string, options?: EncodeOptions): Promise<Float32Array>;
  encode(texts: string[], options?: EncodeOptions): Promise<Float32Array[]>;
  /** Embed with the prompt for queries, or for documents, or none if the bundle has no such; a default template stays. */
  encodeQuery: Encoder['encode'];
  encodeDocument: Encoder['encode'];
  /** Compare the vectors of the probes with the reference's; a ParityError where they differ. */
  verify(): Promise<Agreement>;
  /** Free the graph. */
  close(): Promise<void>;
}

/** Open a bundle in a folder (Node) or at an address (Node and browsers). */
export function open(location: string | URL, options?: OpenOptions): Promise<Encoder>;

/** Base class of every error of this package; each message is one line. */
export class WhitenError extends Error {}
/** An argument or option cannot be used as given. */
export class UsageError extends WhitenError {}
/** A bundle is missing, incomplete, altered, or not a bundle. */
export class BundleError extends WhitenError {}
/** The probes get other vectors here than the reference gave them, perhaps by other token ids. */
export class ParityError extends WhitenError {}
