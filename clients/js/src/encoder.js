// Open a bundle and embed texts with it: the part that Node and browsers share.

import { Bundle } from './bundle.js';
import { BundleError, ParityError, UsageError, WhitenError, checkNames, shown, wholeNumber } from './errors.js';
import { GATES, NESTED_METHODS, PROMPTS } from './tables.js';
import { Tokenizer } from './tokenizer.js';

const [MODEL, WEIGHTS, OUTPUT] = ['onnx/model.onnx', 'onnx/model.onnx_data', 'sentence_embedding'];
const TEXT = '{text}'; // place of a text in a prompt that goes around it
const TOKEN_BUDGET = 1024; // padded tokens of a batch
const OPTIONS = ['threads', 'verify', 'onProgress', 'fetch', 'ort', 'sessionOptions'];
const ARGUMENTS = ['promptName', 'prompt', 'truncateDim', 'normalize', 'truncate'];

/** Open a bundle with the `files(location, options)` and `runtime(options)` of Node or of a browser. */
export async function openWith(host, location, options = {}) {
  checkNames(options, OPTIONS);
  if (options.threads !== undefined) wholeNumber('threads', options.threads, 1);
  const bundle = await Bundle.open(host.files(location, options));
  const { source, manifest } = bundle;
  const names = WEIGHTS in manifest.files ? [MODEL, WEIGHTS] : [MODEL];
  const [{ ort, ...session }, json, [graph, weights]] = await Promise.all([
    host.runtime(options),
    bundle.json('tokenizer.json'),
    Promise.all(names.map((name) => (source.digest ? bundle.check(name) : bundle.bytes(name)))),
  ]);
  const tokenizer = new Tokenizer(json, manifest);
  const external = weights && { externalData: [{ path: 'model.onnx_data', data: weights }] };
  const created = await ort.InferenceSession.create(graph ?? source.where(MODEL), { ...session, ...external, ...options.sessionOptions }).catch((error) => {
    throw new BundleError(`${source.where(MODEL)}: onnxruntime does not accept it (${oneLine(error)}); export the model again`);
  });
  const alone = host.wasm && manifest.precision === 'int8' && `${manifest.layers}` !== '0'; // layer 0 only looks rows up
  const encoder = new Encoder({ ort, session: created, bundle, tokenizer, alone });
  try {
    if (options.verify ?? true) await encoder.verify();
  } catch (error) {
    await encoder.close();
    throw error;
  }
  return encoder;
}

/** Embeds texts with a bundle; see index.d.ts. */
export class Encoder {
  #parts;
  #queue = Promise.resolve();

  constructor(parts) {
    this.#parts = parts;
    this.manifest = parts.bundle.manifest;
    this.dimension = this.manifest.dimension;
  }

  async encode(texts, options = {}) {
    const { manifest } = this;
    const { tokenizer } = this.#open();
    checkNames(options, ARGUMENTS);
    const prompt = resolvePrompt(manifest, options.promptName, options.prompt);
    const finish = this.#finish(options);
    const ids = tokenizer.encode(checkedTexts(texts), (text) => withPrompt(prompt, text), options.truncate ?? true);
    const rows = await this.#embed(ids, manifest.include_prompt ? 0 : tokenizer.promptTokens(prompt));
    return typeof texts === 'string' ? finish(rows[0]) : rows.map(finish);
  }

  encodeQuery = async (texts, options = {}) => this.encode(texts, optionsFor('query', this.manifest, options));

  encodeDocument = async (texts, options = {}) => this.encode(texts, optionsFor('document', this.manifest, options));

  async verify() {
    const { bundle, tokenizer } = this.#open();
    const { texts } = await bundle.json('probes.json');
    const embeddings = await bundle.array('probes.safetensors', 'embeddings');
    const got = await this.#embed(tokenizer.encode(texts, (text) => text, true), 0);
    const pairs = got.map((row, index) => compared(row, embeddings.subarray(index * this.dimension, (index + 1) * this.dimension)));
    const mean = (value) => pairs.reduce((sum, pair) => sum + value(pair), 0) / pairs.length;
    const most = (value) => Math.max(...pairs.map(value));
    const found = {
      vectors: pairs.length,
      minCosine: -most(({ cosine }) => -cosine),
      meanCosine: mean(({ cosine }) => cosine),
      maxDifference: most(({ difference }) => difference),
      maxNormError: most(({ norm }) => Math.abs(norm)),
      meanNormError: mean(({ norm }) => Math.abs(norm)),
      normBias: mean(({ norm }) => norm),
    };
    if (!passes(GATES[this.manifest.precision], found)) throw new ParityError(`${bundle.source.where('probes.json')}: the probes get other vectors here than in Python (${shown(found)}), perhaps by other token ids; use whiten in Python for this bundle`);
    return found;
  }

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

  /** Return what makes the vectors of a call from those of the graph: cut, normalised. */
  #finish({ truncateDim = null, normalize = false }) {
    const { whitening, matryoshka_dimensions: trained, normalize: always } = this.manifest;
    const width = truncateDim === null ? this.dimension : wholeNumber('truncateDim', truncateDim, 1, this.dimension);
    const nested = NESTED_METHODS.includes(whitening?.method) && !whitening.alignment;
    if (width < this.dimension && !nested && !trained.includes(width)) throw new UsageError(`truncateDim is ${width}, but the first coordinates of this bundle mean no more than the others, except for ${trained.join(', ') || 'all'}; leave it out`);
    const unitary = normalize || (truncateDim !== null && always);
    return (row) => {
      const norm = unitary ? Math.sqrt(row.subarray(0, width).reduce((sum, value) => sum + value * value, 0)) || 1 : 1;
      return Float32Array.from(row.subarray(0, width), (value) => value / norm);
    };
  }

  /** Embed token ids, longest first; in wasm, those of an int8 network alone, as its kernels round by the shape of a batch. */
  async #embed(ids, leftOut) {
    const { alone } = this.#open();
    const order = ids.map((_, index) => index).sort((a, b) => ids[b].length - ids[a].length || a - b);
    const rows = new Array(ids.length);
    for (let start = 0; start < order.length; ) {
      const count = alone ? 1 : Math.max(1, Math.floor(TOKEN_BUDGET / Math.max(1, ids[order[start]].length)));
      const batch = order.slice(start, (start += count));
      const found = await this.#run(batch.map((index) => ids[index]), leftOut);
      batch.forEach((index, place) => { rows[index] = found.subarray(place * this.dimension, (place + 1) * this.dimension); });
    }
    return rows;
  }

  /** Run the graph after the runs before have ended: a session of onnxruntime-web takes one at a time. */
  async #run(ids, leftOut) {
    const { ort, session } = this.#open();
    const dims = [ids.length, Math.max(1, ids[0].length)];
    const inputs = new BigInt64Array(dims[0] * dims[1]).fill(BigInt(this.manifest.pad_token_id));
    const mask = new BigInt64Array(inputs.length);
    ids.forEach((row, place) => row.forEach((id, index) => {
      inputs[place * dims[1] + index] = BigInt(id);
      mask[place * dims[1] + index] = index < leftOut ? 2n : 1n; // 2: left out of the pooling
    }));
    const feeds = { input_ids: new ort.Tensor('int64', inputs, dims), attention_mask: new ort.Tensor('int64', mask, dims) };
    const result = this.#queue.then(() => session.run(feeds, [OUTPUT]));
    this.#queue = result.catch(() => {});
    const { data } = (await result.catch((error) => { throw new WhitenError(`onnxruntime failed: ${oneLine(error)}`); }))[OUTPUT];
    if (data.length !== dims[0] * this.dimension || !data.every(Number.isFinite)) throw new BundleError(`the graph gives vectors that are not ${this.dimension} finite numbers; export the model again`);
    return data;
  }
}

function compared(got, want) {
  const norm = (row) => Math.sqrt(row.reduce((sum, value) => sum + value * value, 0));
  const [a, b] = [norm(got), norm(want)];
  const gaps = Array.from(want, (value, index) => got[index] / (a || 1) - value / (b || 1));
  const share = (value) => (value === 0 ? 0 : value / b); // infinite where the reference is zero
  const difference = share(want.reduce((most, value, index) => Math.max(most, Math.abs(got[index] - value)), 0));
  return { cosine: 1 - gaps.reduce((sum, gap) => sum + gap * gap, 0) / 2, difference, norm: share(a - b) };
}

/** Return whether every bound is satisfied; NaN satisfies none. */
function passes(gate, found) {
  const bounds = { max_difference: found.maxDifference, max_norm_error: found.maxNormError, mean_norm_error: found.meanNormError, max_norm_bias: Math.abs(found.normBias) };
  return found.minCosine >= gate.min_cosine && found.meanCosine >= gate.mean_cosine && Object.entries(bounds).every(([name, value]) => value <= (gate[name] ?? Infinity));
}

function checkedTexts(texts) {
  if (typeof texts === 'string') return [texts];
  if (!Array.isArray(texts)) throw new UsageError(`texts is ${shown(texts)}; wanted a string or an array of strings`);
  const index = texts.findIndex((text) => typeof text !== 'string');
  if (index >= 0) throw new UsageError(`texts[${index}] is ${shown(texts[index])}; wanted a string`);
  return texts;
}

function oneLine(error) {
  return String(error?.message ?? error).replace(/\s+/g, ' ').trim();
}

/** Return the prompt to apply, an empty string for none: by name, the words themselves, or else the default one. */
function resolvePrompt(manifest, promptName = null, prompt = null) {
  if (prompt !== null && promptName !== null) throw new UsageError(`prompt and promptName '${promptName}' were both given; leave one out`);
  const name = promptName ?? manifest.default_prompt_name;
  if (prompt === null && name !== null && !(typeof name === 'string' && Object.hasOwn(manifest.prompts, name))) {
    const known = Object.keys(manifest.prompts).map((one) => `'${one}'`).join(', ') || 'none';
    throw new UsageError(`promptName is ${shown(name)}, but the bundle's prompts are: ${known}; or pass prompt`);
  }
  const found = prompt ?? (name === null ? '' : manifest.prompts[name]);
  if (typeof found !== 'string') throw new UsageError(`prompt is ${shown(found)}; wanted a string`);
  if (!manifest.include_prompt && found.includes(TEXT)) {
    throw new UsageError(`prompt goes around the text (${TEXT}), but this bundle leaves prompts out of its pooling; leave it out`);
  }
  return found;
}

/** Return the options of `encode` for queries or documents: the bundle's prompt for them, else its default template, else none. */
function optionsFor(task, manifest, options) {
  const { route } = manifest;
  if (route !== task && (route === 'query' || route === 'document')) throw new UsageError(`this bundle holds the route ${route}; export one with --route ${task} for this`);
  if ((options.promptName ?? options.prompt ?? null) !== null) return options;
  const name = PROMPTS[task].find((one) => Object.hasOwn(manifest.prompts, one)) ?? null;
  const usual = resolvePrompt(manifest, name);
  return { ...options, promptName: null, prompt: name !== null || usual.includes(TEXT) ? usual : '' };
}

/** Return a text with a prompt before it, or around it if the prompt contains `{text}`. */
function withPrompt(prompt, text) {
  return prompt.includes(TEXT) ? prompt.split(TEXT).join(text) : prompt + text;
}
