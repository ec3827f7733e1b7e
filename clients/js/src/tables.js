// What the code takes from Python: fields and values of whiten.json, and bounds of the proof. tests/edge compares both.

export const FORMAT_VERSION = 1;

const CORPUS = 'name sha256 sentences available fitted_at';
const ISOTROPY = 'iso_score average_cosine partition_score';
const PARITY = 'reference vectors min_cosine mean_cosine max_difference max_norm_error mean_norm_error provider max_tokens';

/** Fields of each record of whiten.json, by its place; `*` stands for every item of a list, and every name of an object. */
export const FIELDS = {
  '': 'format_version name space source input layers layer_weights pooling include_prompt modules unwhitened_dimension prompts default_prompt_name'
    + ' truncation_side similarity_fn_name matryoshka_dimensions route whitening choice normalize dimension max_seq_length max_characters tokenizer_sha256 pad_token_id memory precision'
    + ' target quantization opset versions parity published files',
  source: 'model checkpoint revision weights_sha256 parameters_sha256 network_sha256 former_network_sha256 merged_into model_type num_hidden_layers hidden_size sentence_similarity license ignored_code remote_code left_out',
  whitening: 'method common_components beta shrinkage shrinkage_estimator eigenvalue_floor rank n_samples settled corpus prompt_name sample isotropy_before'
    + ' isotropy_after alignment',
  'whitening.corpus.*': CORPUS,
  'whitening.isotropy_before': ISOTROPY,
  'whitening.isotropy_after': ISOTROPY,
  'whitening.alignment': 'space median_cosine self_recall sentences',
  choice: 'why pairs collections candidates',
  'choice.pairs': CORPUS,
  'choice.collections.*': CORPUS,
  'choice.candidates.*': 'whitening beta shrinkage common_components dimension spearman ndcg_at_10',
  quantization: 'constant_scales token_scales far_min_cosine far_mean_cosine token_min_cosine largest_pair',
  memory: 'token_bytes pair_bytes',
  parity: PARITY,
  published: PARITY,
  'files.*': 'sha256 bytes',
};

/** Fields that only older versions wrote, with the values that can be read. */
export const FORMER = { outputs: ['whitened', 'both'], vectors: ['float32'], 'parity.stepped': [null], 'published.stepped': [null] };

/** Values of fields that decide how a text is embedded here. */
export const VALUES = { input: ['text', 'vectors'], truncation_side: ['right', 'left'], precision: ['fp32', 'fp16', 'int8'] };

/** Numbers that every manifest of texts has, each with its least value. */
export const NUMBERS = { dimension: 1, max_seq_length: 1, pad_token_id: 0 };

export const DEFAULTS = { input: 'text', include_prompt: true, prompts: {}, default_prompt_name: null, truncation_side: 'right', route: null,
  matryoshka_dimensions: [] };

/** Whitenings whose first coordinates are those of fewer dimensions. */
export const NESTED_METHODS = ['pca', 'pca-cor'];

/** Bounds of the proof by precision; one that is left out bounds nothing. */
export const GATES = {
  fp32: { min_cosine: 0.999999, mean_cosine: 0.999999, max_difference: 1e-4 },
  fp16: { min_cosine: 0.9999, mean_cosine: 0.9999, max_norm_error: 0.02 },
  int8: { min_cosine: 0.98, mean_cosine: 0.99, max_norm_error: 0.1, mean_norm_error: 0.05, max_norm_bias: 0.02 },
};

/** Names of prompts for queries and documents, in the order in which they are looked for. */
export const PROMPTS = { query: ['query'], document: ['document', 'passage', 'corpus'] };

/** Characters of a text that are tokenised, for each token that the bundle takes. */
export const TOKEN_CHARACTERS = 250;
