// The fields of whiten.json, at every depth; docs/bundle-format.md is the specification.
//
// Each field is NAME:TYPE. Types: s string, i whole number, n number, b true or false, a|b one of these words, [T] list,
// {T} object with any names, @R another record. `?` after a type: may be null or absent; `~`: may be absent.

export const RECORDS = {
  manifest: `format_version:i name:s space:s? source:@source input:text|vectors~ layers:[i] layer_weights:[n]? pooling:s?
    include_prompt:b~ modules:[s]~ unwhitened_dimension:i? prompts:{s}~ default_prompt_name:s? truncation_side:right|left~
    similarity_fn_name:cosine|dot|euclidean|manhattan~ matryoshka_dimensions:[i]~ route:s? whitening:@whitening?
    choice:@choice? normalize:b outputs:whitened|both~ vectors:float32|int8~ dimension:i max_seq_length:i pad_token_id:i
    precision:fp32|fp16|int8 target:cpu|cuda~ quantization:@quantization? opset:i versions:{s} parity:@parity?
    published:@parity? files:{@file}`,
  source: `model:s checkpoint:s? revision:s? weights_sha256:s merged_into:s? model_type:s num_hidden_layers:i hidden_size:i
    sentence_similarity:b license:s?`,
  whitening: `method:pca|zca|cholesky|zca-cor|pca-cor|none common_components:i~ beta:n shrinkage:n shrinkage_estimator:s~
    eigenvalue_floor:n rank:i n_samples:i settled:@settled? corpus:[@corpus] sample:i~ isotropy_before:@isotropy?
    isotropy_after:@isotropy? alignment:@alignment?`,
  settled: 'available:i difference:n bound:n',
  corpus: 'name:s sha256:s sentences:i fitted_at:fp32|fp16|int8?',
  isotropy: 'iso_score:n average_cosine:n partition_score:n',
  alignment: 'space:s median_cosine:n self_recall:n sentences:i',
  choice: 'why:s pairs:@corpus? candidates:[@candidate]~',
  candidate: 'whitening:s beta:n? shrinkage:n~ common_components:i~ dimension:i spearman:n',
  quantization: 'constant_scales:i token_scales:i far_min_cosine:n far_mean_cosine:n token_min_cosine:n largest_pair:i?',
  parity: `reference:s vectors:i min_cosine:n mean_cosine:n max_difference:n max_norm_error:n? mean_norm_error:n?
    provider:s~ stepped:n?`,
  file: 'sha256:s bytes:i',
};

const PLAIN = {
  s: (value) => typeof value === 'string',
  i: Number.isInteger,
  n: Number.isFinite,
  b: (value) => typeof value === 'boolean',
};

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** Return the fields of a record of the manifest: type by name. */
export function fieldsOf(record) {
  return new Map(RECORDS[record].split(/\s+/).map((field) => [field.slice(0, field.indexOf(':')), field.slice(field.indexOf(':') + 1)]));
}

/** Return what is wrong with a record, as {unknown: field} or {problem: words}; null if nothing is. */
export function problemOf(value, record = 'manifest', path = '') {
  if (!isObject(value)) return { problem: `${path || 'the file'} is not an object` };
  const fields = fieldsOf(record);
  for (const name of Object.keys(value)) if (!fields.has(name)) return { unknown: path + name };
  for (const [name, type] of fields) {
    const found = problemOfField(value[name], type, path + name);
    if (found) return found;
  }
  return null;
}

function problemOfField(value, type, path) {
  const last = type.at(-1);
  if (last === '?' || last === '~') {
    if (value === undefined || (last === '?' && value === null)) return null;
    return problemOfField(value, type.slice(0, -1), path);
  }
  if (value === undefined) return { problem: `it has no ${path}` };
  if (type[0] === '@') return problemOf(value, type.slice(1), `${path}.`);
  if (type[0] === '[' || type[0] === '{') {
    if (type[0] === '[' ? !Array.isArray(value) : !isObject(value)) return { problem: `${path} has another type` };
    for (const [key, item] of Object.entries(value)) {
      const found = problemOfField(item, type.slice(1, -1), `${path}.${key}`);
      if (found) return found;
    }
    return null;
  }
  const right = type in PLAIN ? PLAIN[type](value) : type.split('|').includes(value);
  return right ? null : { problem: `${path} has a value that is not understood` };
}
