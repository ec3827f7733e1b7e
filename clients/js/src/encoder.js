// Open a bundle and embed texts with it: the part that Node and browsers share.

import { shown, wholeNumber } from './checks.js';
import { BundleError, IntegrityError, TextError, UsageError, WhitenError } from './errors.js';
import { isNested, parseManifest, sha256 } from './manifest.js';
import { padBatch, planBatches } from './batches.js';
import { optionsFor, resolvePrompt, withPrompt } from './prompts.js';
import { readArrays } from './safetensors.js';
import { Tokenizer } from './tokenizer.js';
import { PRECISIONS, asInt8, checkGiven, checkedRanges, givenRows, momentsOf, quantizer, rangesOf, unit } from './vectors.js';

const TOKEN_BUDGET = 1024; // padded tokens of a batch
const LOOKUP_TOKEN_BUDGET = 512; // of a graph without a network
const ROWS_AT_ONCE = 4096;
const MODEL = 'onnx/model.onnx';
const WEIGHTS = 'onnx/model.onnx_data';
const [OUTPUT, WHITENING] = ['sentence_embedding', 'whitening.safetensors'];
const OPTIONS = ['threads', 'verifyHashes', 'verify', 'onProgress', 'cache', 'fetch', 'ort', 'sessionOptions'];
const ARGUMENTS = ['promptName', 'prompt', 'truncateDim', 'normalize', 'precision', 'batchSize', 'truncate', 'ranges'];

/** Fusions that Python switches off too: with them, int8 vectors are others. */
export const FUSIONS = { disable_specified_optimizers: 'SkipLayerNormFusion;BiasGeluFusion' };

/** Files that other programs read and write; no vector depends on them, so they may differ from the manifest. */
export const CLIENT_FILES = ['README.md', 'config.json', 'special_tokens_map.json', 'tokenizer_config.json', 'modules.json',
  '1_Pooling/config.json', 'sentence_bert_config.json', 'config_sentence_transformers.json'];

/**
 * Open a bundle.
 * @param {object} host `files(location, options)` and `runtime(options)` of Node or of a browser
 * @param {string|URL} location folder or address of the bundle
 * @param {object} [options] as in index.d.ts
 */
export async function openWith(host, location, options = {}) {
  checkNames('option', options, OPTIONS);
  if (options.threads !== undefined) wholeNumber('threads', options.threads, 1);
  const files = host.files(location, options);
  const manifest = Object.freeze(await parseManifest(await files.manifest(), files.where('whiten.json')));
  const checked = new CheckedFiles(files, manifest, options.verifyHashes ?? true);
  await files.checkAll?.(checked);
  const [{ ort, ...session }, json, graph, weights] = await Promise.all([
    host.runtime(options),
    manifest.input === 'text' ? checked.json('tokenizer.json') : null,
    files.graph ? files.graph(MODEL) : checked.bytes(MODEL),
    files.graph || !(WEIGHTS in manifest.files) ? null : checked.bytes(WEIGHTS),
  ]);
  const tokenizer = json && new Tokenizer(json, manifest);
  const external = weights && { externalData: [{ path: 'model.onnx_data', data: weights }] };
  const created = await ort.InferenceSession.create(graph, { ...session, ...external, ...options.sessionOptions }).catch((error) => {
    throw new BundleError(`${files.where(MODEL)}: onnxruntime does not accept it (${oneLine(error)}); export the model again`);
  });
  const encoder = new Encoder({ ort, session: created, files: checked, manifest, tokenizer, alone: host.wasm && manifest.precision === 'int8' });
  if (options.verify) await encoder.verify();
  return encoder;
}

/** Reads files of a bundle, and compares them with the manifest. */
class CheckedFiles {
  constructor(files, manifest, hashed) {
    Object.assign(this, { files, manifest, hashed });
  }

  /** Return the content of a file that the manifest lists. */
  async bytes(name) {
    const record = this.manifest.files[name];
    const bytes = await this.files.read(name, record);
    this.check(name, bytes.length, this.hashed ? await sha256(bytes) : null);
    await this.files.keep?.(name, record, bytes);
    return bytes;
  }

  async json(name) {
    try {
      return JSON.parse(new TextDecoder().decode(await this.bytes(name)));
    } catch (error) {
      if (error instanceof WhitenError) throw error;
      throw new BundleError(`${this.files.where(name)}: not JSON (${error.message}); copy the bundle again`);
    }
  }

  /** Compare size and SHA-256 with the manifest; null for no hash. */
  check(name, size, hash) {
    const record = this.manifest.files[name];
    if (size !== record.bytes) {
      throw new IntegrityError(`${this.files.where(name)}: ${size} bytes, but whiten.json says ${record.bytes}; the copy is incomplete or altered: copy the bundle again`);
    }
    if (hash !== null && hash !== record.sha256) {
      throw new IntegrityError(`${this.files.where(name)}: SHA-256 differs from whiten.json; the file was altered: copy the bundle again`);
    }
  }
}

/** Embeds texts with a bundle. */
export class Encoder {
  #parts;
  #ranges;
  #queue = Promise.resolve();

  constructor(parts) {
    this.#parts = parts;
    this.manifest = parts.manifest;
    this.dimension = parts.manifest.dimension;
    this.prompts = parts.manifest.prompts;
  }

  /** Embed one text, or several: see index.d.ts. */
  async encode(texts, options = {}) {
    const { manifest, tokenizer } = this.#open();
    if (!tokenizer) throw new UsageError('this bundle takes vectors, not texts; call transform');
    checkNames('option', options, ARGUMENTS);
    const prompt = resolvePrompt(manifest, options.promptName, options.prompt);
    const finish = await this.#finish(options);
    const ids = tokenizer.encode(checkedTexts(texts), (text) => withPrompt(prompt, text), options.truncate ?? true);
    const leftOut = manifest.include_prompt ? 0 : tokenizer.promptTokens(prompt);
    const rows = await this.#embed(ids, leftOut, batchSize(options));
    checkGiven(rows, 'texts');
    return typeof texts === 'string' ? finish(rows[0]) : rows.map(finish);
  }

  /** Embed queries, with the bundle's prompt for them: see index.d.ts. */
  async encodeQuery(texts, options = {}) {
    return this.encode(texts, optionsFor('query', this.manifest, options));
  }

  /** Embed documents, with the bundle's prompt for them: see index.d.ts. */
  async encodeDocument(texts, options = {}) {
    return this.encode(texts, optionsFor('document', this.manifest, options));
  }

  /** Whiten vectors, with a bundle that takes vectors: see index.d.ts. */
  async transform(vectors, options = {}) {
    const { manifest } = this.#open();
    if (manifest.input !== 'vectors') throw new UsageError('this bundle takes texts, not vectors; call encode');
    checkNames('option', options, ARGUMENTS.filter((name) => !/^prompt|^truncate$/.test(name)));
    const finish = await this.#finish(options);
    const rows = await this.#map(givenRows(vectors, manifest.unwhitened_dimension ?? manifest.source.hidden_size), batchSize(options));
    checkGiven(rows, 'vectors');
    return rows.map(finish);
  }

  /** Compare every file with whiten.json, and the probes with the reference's vectors: see index.d.ts. */
  async verify() {
    const { manifest, files, tokenizer } = this.#open();
    const { prove } = await import('./verify.js');
    const hashing = new CheckedFiles(files.files, manifest, true);
    const names = Object.keys(manifest.files).filter((name) => !CLIENT_FILES.includes(name));
    return prove(hashing, names, tokenizer, (rows) => (tokenizer ? this.#embed(rows, 0) : this.#map(rows)));
  }

  /** Return the number of tokens of a text, special tokens included, before truncation. */
  tokenCount(text) {
    return this.#open().tokenizer.tokenize(checkedTexts(text)[0]).length;
  }

  /** Free the graph. The encoder cannot be used afterwards. */
  async close() {
    const parts = this.#parts;
    this.#parts = null;
    await this.#queue;
    await parts?.session.release();
  }

  #open() {
    if (!this.#parts) throw new WhitenError('this encoder was closed; open another');
    return this.#parts;
  }

  /** Return what makes the vectors of a call from those of the graph: cut, normalised, quantised. */
  async #finish({ truncateDim = null, normalize = false, precision = 'float32', ranges = null }) {
    const { manifest } = this;
    if (!PRECISIONS.includes(precision)) throw new UsageError(`precision is ${shown(precision)}; wanted ${PRECISIONS.join(' or ')}`);
    const width = truncateDim === null ? this.dimension : wholeNumber('truncateDim', truncateDim, 1, this.dimension);
    if (width < this.dimension && !isNested(manifest) && !manifest.matryoshka_dimensions.includes(width)) {
      const allowed = manifest.matryoshka_dimensions.join(', ');
      throw new UsageError(`truncateDim is ${width}, but ${allowed ? `the model was trained for vectors cut to ${allowed}` : 'the first coordinates of this bundle mean no more than the others; leave it out'}`);
    }
    const unitary = normalize || (truncateDim !== null && manifest.normalize);
    const code = await this.#codes(precision, ranges, width, unitary);
    return (row) => {
      const cut = row.slice(0, width);
      const found = unitary ? unit(cut) : cut;
      return code ? code(found) : found;
    };
  }

  async #codes(precision, ranges, width, unitary) {
    const stepped = precision === 'int8' || precision === 'uint8';
    if (ranges !== null && !stepped) throw new UsageError(`ranges are for precision int8 and uint8, not ${precision}; leave them out`);
    if (precision === 'float32') return null;
    if (this.manifest.vectors === 'int8' && stepped && !unitary && ranges === null) {
      if (precision === 'int8') return asInt8;
      throw new UsageError('the vectors of this bundle are int8 already; take precision int8, which needs no ranges');
    }
    if (!stepped) return quantizer(precision, null);
    return quantizer(precision, ranges ? checkedRanges(ranges, width) : rangesOf(await this.#moments(), width, unitary || this.manifest.normalize));
  }

  async #moments() {
    const { files, manifest } = this.#open();
    if (!this.#ranges && WHITENING in manifest.files) {
      const arrays = readArrays(await files.bytes(WHITENING), files.files.where(WHITENING), ['mean', 'W', 'corpus_mean', 'covariance']);
      this.#ranges = arrays && momentsOf(arrays);
    }
    if (!this.#ranges) throw new UsageError('this bundle stores no moments of its vectors, from which the ranges of int8 and uint8 follow; pass ranges, or take precision binary');
    return this.#ranges;
  }

  /** Embed token ids; in wasm, those of an int8 network alone, as its kernels round by the shape of a batch. */
  async #embed(ids, leftOut, most = Infinity) {
    const { ort, manifest, alone } = this.#open();
    const lookup = manifest.layers.length === 1 && manifest.layers[0] === 0;
    const batches = planBatches(ids.map((row) => row.length), lookup ? LOOKUP_TOKEN_BUDGET : TOKEN_BUDGET, alone && !lookup ? 1 : most);
    const rows = new Array(ids.length);
    for (const batch of batches) {
      const { inputs, mask, dims } = padBatch(batch.map((index) => ids[index]), manifest.pad_token_id, leftOut);
      const feeds = { input_ids: new ort.Tensor('int64', inputs, dims), attention_mask: new ort.Tensor('int64', mask, dims) };
      const found = await this.#run(feeds, batch.length);
      batch.forEach((index, place) => { rows[index] = found[place]; });
    }
    return rows;
  }

  async #map(vectors, most = ROWS_AT_ONCE) {
    const rows = [];
    for (let start = 0; start < vectors.length; start += most) {
      const part = vectors.slice(start, start + most);
      const data = new Float32Array(part.length * part[0].length);
      part.forEach((row, index) => data.set(row, index * row.length));
      rows.push(...(await this.#run({ vectors: new (this.#open().ort.Tensor)('float32', data, [part.length, part[0].length]) }, part.length)));
    }
    return rows;
  }

  /** Run the graph after the runs before have ended: a session of onnxruntime-web takes one at a time. */
  async #run(feeds, count) {
    const { session } = this.#open();
    const result = this.#queue.then(() => session.run(feeds, [OUTPUT]));
    this.#queue = result.catch(() => {});
    const output = (await result.catch((error) => { throw new WhitenError(`onnxruntime failed: ${oneLine(error)}`); }))[OUTPUT];
    if (`${output.dims}` !== `${[count, this.dimension]}`) throw new BundleError(`the graph gives vectors of shape ${shown(output.dims)}, but the manifest says ${this.dimension} dimensions; export the model again`);
    return Array.from({ length: count }, (_, index) => output.data.slice(index * this.dimension, (index + 1) * this.dimension));
  }
}

function checkNames(what, given, known) {
  for (const name of Object.keys(given)) if (!known.includes(name)) throw new UsageError(`there is no ${what} '${name}'; wanted ${known.join(', ')}`);
}

function checkedTexts(texts) {
  if (typeof texts === 'string') return [texts];
  if (typeof texts?.[Symbol.iterator] !== 'function' || ArrayBuffer.isView(texts) || texts instanceof Map) throw new TextError(`texts is ${shown(texts)}; wanted a string or an array of strings`);
  const found = Array.from(texts);
  const index = found.findIndex((text) => typeof text !== 'string');
  if (index >= 0) throw new TextError(`texts[${index}] is ${shown(found[index])}; wanted a string`);
  return found;
}

function batchSize({ batchSize: most }) {
  return most === undefined ? undefined : wholeNumber('batchSize', most, 1);
}

function oneLine(error) {
  return String(error?.message ?? error).replace(/\s+/g, ' ').trim();
}
