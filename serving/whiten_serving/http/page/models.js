// Models: what each one is, and the proof that its vectors are those of the original.
async function startModels() {
  try {
    const { models } = await json('api/tags');
    const cards = [...infos].map(([name, info]) => {
      const tag = models.find((one) => one.name === name || one.name === `${name}:latest`);
      return modelCard(name, info, tag);
    });
    $('models-list').replaceChildren(...cards);
  } catch (error) {
    fail('models-error', error);
  }
}

function modelCard(name, { whiten, ...info }, tag) {
  const kinds = { float32: 'float32', float16: 'float16', int8: 'int8' };
  const layers = whiten.layers.length ? whiten.layers.join(', ') : 'none: vectors are precomputed';
  const worst = whiten.parity_cosine;
  const proof = worst === null
    ? 'not measured at this start'
    : `worst cosine with the original ${worst.toFixed(7)}, measured here at the start on ${whiten.providers[0]}`;
  const facts = [
    ['Source', tag?.details.parent_model],
    ['Layers', layers],
    ['Pooling', info.model_type.embedding.pooling],
    ['Whitening', whiten.whitening],
    ['Dimensions', whiten.dimension.toLocaleString('en')],
    ['Length', `${count(info.max_input_length, 'token')}; longer texts are cut on the ${whiten.truncation_side}`],
    ['Precision', kinds[info.model_dtype] ?? info.model_dtype],
    ['Size', tag && bytes(tag.size)],
    ['Proof', proof],
    ['Space', el('code', {}, whiten.space ?? 'unknown')],
    ['Similarity', whiten.similarity],
    ['Prompts', whiten.prompts.join(', ') || 'none'],
    ['SHA-256', el('code', {}, info.model_sha)],
  ];
  const known = facts.filter(([, value]) => value !== undefined && value !== null);
  return el('article', { class: 'card' }, el('h2', {}, name),
    el('dl', {}, ...known.flatMap(([term, value]) => [el('dt', {}, term), el('dd', {}, value)])));
}
