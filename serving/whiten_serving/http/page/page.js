// The page of `whiten serve`. Texts become text nodes: nothing of them is markup.
const SAMPLES = [
  'A heron waits in the shallow water and spears a trout.',
  'Kingfishers dive from a branch to seize small fish.',
  'The bank lowered the rate of its mortgages.',
  'Borrowing money for a house has become cheaper.',
  'The orchestra rehearsed a symphony by Mahler.',
  'A string quartet tunes its instruments on the stage.',
];
const MAPPED = 50; // lines of a map
const LABEL = 160; // characters of a label
const COPIED = 10_000; // characters of texts that a copied program holds
const AROUND = 90; // characters on each side of a cut

const $ = (id) => document.getElementById(id);
const base = location.pathname.replace(/\/*$/, '/');
const infos = new Map(); // what /info says of each model
let key = '';

function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(attribute, value);
    else if (value !== false) element.setAttribute(attribute, value === true ? '' : value);
  }
  element.append(...children);
  return element;
}

const short = (text, most = LABEL) => (text.length > most ? `${text.slice(0, most)}…` : text);
const count = (number, noun) => `${number.toLocaleString('en')} ${noun}${number === 1 ? '' : 's'}`;
const fixed = (number) => number.toFixed(2).replace('-0.00', '0.00').replace('-', '−');

// A table, whose first column names the rows. Columns of numbers end with #.
function table(caption, columns, rows) {
  const numeric = columns.map((name) => (name.endsWith('#') ? 'number' : 'text'));
  const heads = columns.map((name, at) => el('th', { scope: 'col', class: numeric[at] }, name.replace('#', '')));
  const cells = (row) => row.map((value, at) => el(at ? 'td' : 'th', { class: numeric[at], dir: 'auto', scope: !at && 'row' }, value));
  return el('div', { class: 'card scroll' }, el('table', { class: 'list' },
    el('caption', {}, caption),
    el('thead', {}, el('tr', {}, ...heads)),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...cells(row))))));
}

function fillSelect(id, pairs, chosen = '') {
  $(id).replaceChildren(...pairs.map(([value, text]) => el('option', { value, selected: value === chosen }, text)));
}

function showError(id, error) {
  $(id).hidden = !error;
  $(id).textContent = error ? (error instanceof Refusal ? error.message : `The page failed: ${error.message}`) : '';
}

// Requests

class Refusal extends Error {}

async function request(path, body) {
  const headers = { 'content-type': 'application/json', ...(key && { authorization: `Bearer ${key}` }) };
  let answer, text;
  try {
    answer = await fetch(base + path, { method: body ? 'POST' : 'GET', headers, body: JSON.stringify(body), cache: 'no-store' });
    text = await answer.text();
  } catch {
    showState(false);
    throw new Refusal('The server does not answer. Look whether it still runs, then try again.');
  }
  showState(true);
  if (answer.ok) return { headers: answer.headers, body: JSON.parse(text) };
  if (answer.status === 401 && $('key-form').hidden) {
    $('key-form').hidden = false;
    $('key').focus();
  }
  let message = text.slice(0, 500) || `The server answered with status ${answer.status}.`;
  try {
    const { error } = JSON.parse(text);
    message = error.message ?? error;
  } catch { /* not JSON: a proxy, perhaps */ }
  throw new Refusal(message);
}

function showState(up) {
  const words = up ? 'Ready' : 'Does not answer';
  if ($('state').textContent !== words) $('state').textContent = words;
  $('dot').style.background = `var(--${up ? 'good' : 'bad'})`;
}

// Vectors divided by their norms, and what they cost.
async function embed(asked) {
  const begun = performance.now();
  const { headers, body } = await request('v1/embeddings', { ...asked, encoding_format: 'base64' });
  const vectors = body.data.map(({ embedding }) => {
    const vector = new Float32Array(Uint8Array.from(atob(embedding), (letter) => letter.charCodeAt(0)).buffer);
    const norm = Math.hypot(...vector) || 1;
    return vector.map((value) => value / norm);
  });
  return { vectors, tokens: body.usage.prompt_tokens, cut: Number(headers.get('x-whiten-truncated') ?? 0), ms: performance.now() - begun };
}

// Cosines of each vector with each of the others; the page stays usable meanwhile.
async function cosines(vectors, others) {
  const rows = [];
  let since = performance.now();
  for (const vector of vectors) {
    rows.push(Float32Array.from(others, (other) => {
      let sum = 0;
      for (let at = 0; at < vector.length; at += 1) sum += vector[at] * other[at];
      return Math.max(-1, Math.min(1, sum));
    }));
    if (performance.now() - since > 40) {
      await new Promise((next) => setTimeout(next));
      since = performance.now();
    }
  }
  return rows;
}

// Try: lines compared with each other, or ranked for a query

let edition = 0; // of the form; a result of an earlier one is not shown
const ranks = () => new FormData($('try-form')).get('task') === 'rank';

function clearResult() {
  edition += 1;
  $('try-done').textContent = '';
  $('try-result').replaceChildren();
}

function fillForm() {
  const { whiten } = infos.get($('model').value);
  const names = whiten.prompts.map((name) => [`prompt_name ${name}`, name]);
  const tasks = [['input_type query', 'as a query'], ['input_type document', 'as a document']];
  const prompts = [['', whiten.default_prompt_name ?? 'none'], ...tasks, ...names];
  fillSelect('query-prompt', prompts, names.length ? 'input_type query' : '');
  fillSelect('prompt', prompts, names.length && ranks() ? 'input_type document' : '');
  const powers = [1024, 512, 256, 128, 64, 32, 16, 8];
  const widths = (whiten.nested ? powers : whiten.matryoshka_dimensions).filter((width) => width < whiten.dimension);
  const sizes = widths.sort((a, b) => b - a).map((width) => [`${width}`, `${width}`]);
  fillSelect('dimensions', [['', `all ${whiten.dimension}`], ...sizes], $('dimensions').value);
  $('dimensions-field').hidden = !widths.length;
  $('model-field').hidden = infos.size < 2;
  $('query-field').hidden = !ranks();
  $('query-prompt-field').hidden = !names.length || !ranks();
  $('prompt-field').hidden = !names.length;
  $('run').textContent = ranks() ? 'Rank' : 'Compare';
  showError('try-error');
  clearResult();
}

// The body of a request for texts, by what is chosen in the form.
function bodyFor(input, promptId) {
  const [field, name] = $(promptId).value.split(/ (.*)/);
  const width = Number($('dimensions').value);
  return { model: $('model').value, input, ...(width && { dimensions: width }), ...(field && { [field]: name }) };
}

async function runForm() {
  const shown = edition;
  const lines = $('texts').value.split('\n').map((text, at) => ({ text, name: `${at + 1}` })).filter(({ text }) => text.trim());
  const query = $('query').value;
  if (!lines.length) throw new Refusal('There is no text. Write at least one line.');
  if (ranks() && !query.trim()) throw new Refusal('There is no query. Write one, or compare the lines.');
  const bodies = [bodyFor(lines.map(({ text }) => text), 'prompt')];
  if (ranks()) bodies.push(bodyFor([query], 'query-prompt'));
  const answers = [];
  for (const body of bodies) answers.push(await embed(body));
  const rows = await cosines(answers.at(-1).vectors, answers[0].vectors);
  const cuts = [];
  if (answers[0].cut) cuts.push(await cutTexts(lines, bodies[0], answers[0].cut));
  if (answers[1]?.cut) cuts.push(await cutTexts([{ text: query }], bodies[1], 1));
  if (shown !== edition) return;
  const sum = (name) => answers.reduce((total, answer) => total + answer[name], 0);
  const ms = sum('ms');
  $('try-done').textContent = [
    bodies[0].model, count(lines.length + answers.length - 1, 'text'), count(sum('tokens'), 'token'),
    count(answers[0].vectors[0].length, 'dimension'), `${ms.toLocaleString('en', { maximumFractionDigits: ms < 10 ? 1 : 0 })} ms round trip`,
  ].join(' · ');
  const results = ranks() ? [ranking(query, lines, rows[0])] : similarities(lines, rows);
  $('try-result').replaceChildren(...results, ...cuts, copyAs(...bodies));
}

function ranking(query, lines, row) {
  const order = lines.map((line, at) => ({ ...line, value: row[at] })).sort((a, b) => b.value - a.value);
  const rows = order.map(({ name, text, value }, at) => {
    const bar = el('i');
    bar.style.width = `${Math.max(0, value) * 100}%`;
    return [`${at + 1}`, el('span', {}, fixed(value), el('span', { class: 'bar', 'aria-hidden': 'true' }, bar)), short(text), name];
  });
  return table(`Ranked for “${short(query, 80)}”`, ['Rank#', 'Similarity#', 'Text', 'Line#'], rows);
}

function similarities(lines, rows) {
  const map = heatMap(lines.slice(0, MAPPED), rows, lines.length);
  if (lines.length < 3) return [map];
  const line = (at) => el('div', { class: 'line', dir: 'auto' }, el('span', { class: 'at' }, lines[at].name), short(lines[at].text));
  const pairs = [];
  for (let first = 0; first < lines.length; first += 1) {
    for (let second = first + 1; second < lines.length; second += 1) {
      const value = rows[first][second];
      if (pairs.length === 5 && value <= pairs[4].value) continue;
      pairs.push({ first, second, value });
      pairs.sort((a, b) => b.value - a.value);
      pairs.splice(5);
    }
  }
  const closest = pairs.map(({ first, second, value }) => [fixed(value), el('div', {}, line(first), line(second))]);
  const means = rows.map((row, at) => ({ at, value: (row.reduce((sum, value) => sum + value, 0) - row[at]) / (row.length - 1) }));
  const outliers = means.sort((a, b) => a.value - b.value).slice(0, 3).map(({ at, value }) => [fixed(value), line(at)]);
  return [map, el('div', { class: 'pair' },
    table('Closest pairs', ['Similarity#', 'Lines'], closest), table('Least like the others', ['Mean#', 'Line'], outliers))];
}

// A table of similarities in colours of [-1, 1], or of the values that occur.
function heatMap(lines, rows, all) {
  const cells = [];
  const body = lines.map(({ name, text }, at) => el('tr', {},
    el('th', { scope: 'row', title: short(text), dir: 'auto' }, el('span', { class: 'at' }, name), short(text)),
    ...Array.from(rows[at].subarray(0, lines.length), (value) => {
      const cell = el('td', {}, fixed(value));
      cells.push({ cell, value });
      return cell;
    })));
  const heads = lines.map(({ name, text }) => el('th', { scope: 'col', title: short(text) }, name));
  const caption = `Similarity of ${lines.length < all ? `the first ${lines.length} of ` : ''}${count(all, 'line')}`;
  const scroll = el('div', { class: 'scroll', tabindex: 0, role: 'group', 'aria-label': caption },
    el('table', { class: 'map' }, el('caption', {}, caption),
      el('thead', {}, el('tr', {}, el('td'), ...heads)), el('tbody', {}, ...body)));
  const wide = el('p', { class: 'hint', hidden: true }, 'Scroll the map sideways for more columns. →');
  new ResizeObserver(() => { wide.hidden = scroll.scrollWidth <= scroll.clientWidth; }).observe(scroll);
  const off = lines.flatMap((_, at) => Array.from(rows[at].subarray(0, at)));
  const range = [Math.min(...off), Math.max(...off)];
  const [least, most, bar] = [el('span'), el('span'), el('i', { 'aria-hidden': 'true' })];
  const paint = () => {
    const [low, high] = stretch.checked ? range : [-1, 1];
    for (const { cell, value } of cells) {
      const part = stretch.checked ? Math.max(0, Math.min(1, (value - low) / (high - low || 1))) : value;
      cell.style.setProperty('--colour', `color-mix(in srgb, var(${part < 0 ? '--below' : '--hot'}) ${Math.abs(part) * 100}%, var(--cold))`);
    }
    bar.className = stretch.checked ? 'stretched' : '';
    least.textContent = fixed(low);
    most.textContent = fixed(high);
  };
  const stretch = el('input', { type: 'checkbox', change: paint });
  const legend = el('p', { class: 'legend' }, 'Cosine similarity', el('span', { class: 'scale' }, least, bar, most));
  if (lines.length > 2) legend.append(el('label', { class: 'check' }, stretch, 'Stretch the colours to these values'));
  paint();
  return el('div', { class: 'card heat' }, scroll, wide, legend);
}

// Which of the longest texts were cut, and where; the API says only how many.
async function cutTexts(lines, { model, input_type, prompt_name }, number) {
  const { whiten, max_input_length } = infos.get(model);
  const tokens = async (body) => (await request('tokenize', { model, ...body })).body[0];
  const prompt = prompt_name ?? (input_type ? undefined : whiten.default_prompt_name ?? undefined);
  const around = await tokens({ inputs: '', prompt_name: prompt }).catch(() => [0, 0]); // a prompt around the text
  const most = max_input_length - around.length;
  const left = whiten.truncation_side === 'left';
  const items = [];
  for (const { name, text } of [...lines].sort((a, b) => b.text.length - a.text.length).slice(0, 10)) {
    const letters = Array.from(text);
    const pieces = await tokens({ inputs: letters.slice(0, 100_000).join(''), add_special_tokens: false });
    if (pieces.length <= most) continue;
    const at = left ? pieces[pieces.length - most].start : pieces[most - 1].stop;
    const parts = [letters.slice(Math.max(0, at - AROUND), at), letters.slice(at, at + AROUND)];
    const all = `${letters.length > 100_000 ? 'more than ' : ''}${count(pieces.length, 'token')}`;
    const words = `${name ? `Line ${name}` : 'The query'}: ${most} of ${all} were read; what is struck out was not.`;
    const excerpt = parts.map((part, after) => el(Boolean(after) === left ? 'span' : 'del', {}, part.join('')));
    const ends = [at > AROUND ? '…' : '', at + AROUND < letters.length ? '…' : ''];
    items.push(el('p', { class: 'figures' }, words), el('p', { class: 'excerpt', dir: 'auto' }, ends[0], ...excerpt, ends[1]));
    if (items.length === 2 * number) break;
  }
  const title = `${count(number, 'text')} longer than the model reads (${count(max_input_length, 'token')})${items.length < 2 * number ? ', such as' : ''}`;
  return el('div', { class: 'card' }, el('h2', {}, title), ...items);
}

// Copy as: what was just tried, as a program. Keys are never written into it.

const json = JSON.stringify;
const list = (texts) => `[\n${texts.map((text) => `    ${json(text)},\n`).join('')}]`;
const quoted = (body) => `'${json(body).replaceAll("'", "'\\''")}'`;

const PROGRAMS = {
  curl(url, texts, query) {
    const curl = (data) => [
      `curl -s ${url}/v1/embeddings \\`,
      ...(key ? ['  -H "Authorization: Bearer $WHITEN_API_KEY" \\'] : []),
      `  -H 'Content-Type: application/json' -d ${data}`,
    ];
    if (!query) return curl(quoted(texts));
    return [
      'embed() {', ...curl('"$1"').map((line) => `  ${line}`), '}', '',
      `query=${quoted(query)}`,
      `texts=${quoted(texts)}`,
      `{ embed "$query"; embed "$texts"; printf %s "$texts"; } | jq -rs '`,
      '  def dot($a; $b): [$a, $b] | transpose | map(.[0] * .[1]) | add;',
      '  def cosine($a; $b): dot($a; $b) / ([dot($a; $a) * dot($b; $b) | sqrt, 1e-30] | max);',
      '  .[0].data[0].embedding as $query',
      '  | [[.[1].data[].embedding | cosine($query; .)], .[2].input] | transpose',
      `  | sort_by(-.[0])[] | "\\(.[0]) \\(.[1])"'`,
    ];
  },
  Python(url, texts, query) {
    const options = ({ model, dimensions, input: _, ...extra }) => [
      `model=${json(model)}`, ...(dimensions ? [`dimensions=${dimensions}`] : []),
      ...(Object.keys(extra).length ? [`extra_body=${json(extra)}`] : []),
    ].join(', ');
    return [
      ...(query ? ['from math import hypot'] : []), ...(key ? ['from os import environ'] : []), 'from openai import OpenAI', '',
      `client = OpenAI(base_url="${url}/v1", api_key=${key ? 'environ["WHITEN_API_KEY"]' : '"none"'})`, '', '',
      'def embed(texts, **options):',
      '    answer = client.embeddings.create(input=texts, encoding_format="float", **options)',
      '    return [item.embedding for item in answer.data]', '', '',
      `texts = ${list(texts.input)}`,
      `vectors = embed(texts, ${options(texts)})`,
      ...(query ? [
        `query = embed(${json(query.input)}, ${options(query)})[0]`,
        'scores = [sum(a * b for a, b in zip(query, v)) / (hypot(*query) * hypot(*v) or 1) for v in vectors]',
        'for score, text in sorted(zip(scores, texts), reverse=True):',
        '    print(f"{score:.4f}", text)',
      ] : ['print(len(vectors), "vectors of", len(vectors[0]))']),
    ];
  },
  JavaScript(url, { input, ...texts }, query) {
    return [
      'async function embed(body) {',
      `  const answer = await fetch('${url}/v1/embeddings', {`,
      "    method: 'POST',",
      `    headers: { 'Content-Type': 'application/json'${key ? ', Authorization: `Bearer ${process.env.WHITEN_API_KEY}`' : ''} },`,
      '    body: JSON.stringify(body),',
      '  });',
      '  if (!answer.ok) throw new Error(await answer.text());',
      '  return (await answer.json()).data.map((item) => item.embedding);',
      '}', '',
      `const texts = ${list(input)};`,
      `const vectors = await embed({ ...${json(texts)}, input: texts });`,
      ...(query ? [
        `const [query] = await embed(${json(query)});`,
        'const dot = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);',
        'const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);',
        'const ranked = texts.map((text, at) => [cosine(query, vectors[at]), text]).sort((a, b) => b[0] - a[0]);',
        'for (const [score, text] of ranked) console.log(score.toFixed(4), text);',
      ] : ["console.log(vectors.length, 'vectors of', vectors[0].length);"]),
    ];
  },
};

// The beginning of the texts, as much as a terminal takes.
function beginning(body) {
  let room = COPIED;
  const input = body.input.map((text) => {
    const part = text.slice(0, room).replace(/[\ud800-\udbff]$/, '');
    room -= part.length;
    return part;
  }).filter(Boolean);
  return { ...body, input };
}

let language = 'curl';

function copyAs(...bodies) {
  const parts = bodies.map(beginning);
  const code = el('code');
  const said = el('span', { class: 'hint', role: 'status' });
  const show = () => {
    code.textContent = PROGRAMS[language](location.origin + base.slice(0, -1), ...parts).join('\n');
    said.textContent = '';
  };
  const select = el('select', { change: () => {
    language = select.value;
    show();
  } }, ...Object.keys(PROGRAMS).map((name) => el('option', { selected: name === language }, name)));
  const copy = el('button', { type: 'button', class: 'plain', click: async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = 'Copied';
    } catch { // browsers give the clipboard to HTTPS and to this machine only
      getSelection().selectAllChildren(code);
      said.textContent = 'Selected: press Ctrl+C';
    }
  } }, 'Copy');
  show();
  const note = json(parts) === json(bodies) ? '' : `With the first ${count(COPIED, 'character')} of what was tried.`;
  return el('div', { class: 'card' },
    el('div', { class: 'copy' }, el('h2', {}, el('label', {}, 'Copy as', select)), copy, said),
    el('p', { class: 'figures' }, note), el('pre', { tabindex: 0, 'aria-label': 'Program' }, code));
}

// Models: what each one is

async function showModels() {
  const { models } = (await request('api/tags')).body;
  $('models-list').replaceChildren(...[...infos].map(([name, { whiten, ...info }]) => {
    const tag = models.find((model) => model.name === name || model.name === `${name}:latest`);
    const coded = (value, help) => el('div', {}, el('code', {}, value), el('div', { class: 'hint' }, help));
    const facts = {
      Source: tag?.details.parent_model,
      Layers: whiten.layers.join(', ') || 'none: vectors are precomputed',
      Pooling: info.model_type.embedding.pooling,
      Whitening: whiten.whitening,
      Dimensions: whiten.dimension.toLocaleString('en'),
      Length: `${count(info.max_input_length, 'token')}; longer texts are cut on the ${whiten.truncation_side}`,
      Precision: info.model_dtype,
      Size: tag && `${(tag.size / 1e6).toPrecision(3)} MB`,
      'Checked at start': whiten.parity_cosine === null ? 'no'
        : `worst cosine with the original ${whiten.parity_cosine.toFixed(7)} (${whiten.providers[0].replace('ExecutionProvider', '')})`,
      Similarity: whiten.similarity,
      Prompts: whiten.prompts.join(', ') || 'none',
      Space: whiten.space && coded(whiten.space, 'Vectors of two models can be compared if their spaces are the same.'),
      'SHA-256': coded(info.model_sha, "Of the bundle's whiten.json, which has the hash of each file."),
    };
    const rows = Object.entries(facts).filter(([, value]) => value).flatMap(([term, value]) => [el('dt', {}, term), el('dd', {}, value)]);
    return el('article', { class: 'card' }, el('h2', {}, name), el('dl', {}, ...rows));
  }));
}

// Start: show the view of the address, read what is served, ask for a key if the server wants one

function showView() {
  const name = location.hash.slice(1) || 'try';
  if (!['try', 'models'].includes(name)) return; // the link that skips to the content
  for (const link of document.querySelectorAll('nav a')) {
    const view = link.hash.slice(1);
    $(view).hidden = view !== name;
    link.setAttribute('aria-current', view === name ? 'page' : 'false');
  }
  document.title = `${$(`${name}-title`).textContent} – whiten`;
}

async function start() {
  showError('try-error');
  try {
    const first = (await request('info')).body;
    for (const name of first.whiten.models) {
      infos.set(name, (await request(`models/${name.split('/').map(encodeURIComponent).join('/')}/info`)).body);
    }
    $('version').textContent = first.version;
  } catch (error) {
    if (key || $('key-form').hidden) showError('try-error', error);
    return;
  }
  const names = [...infos.keys()];
  $('served').textContent = names.length > 1 ? count(names.length, 'model') : names[0];
  fillSelect('model', names.map((name) => [name, name]));
  $('texts').value = SAMPLES.join('\n');
  $('try-form').hidden = false;
  fillForm();
  $('try-form').requestSubmit();
  showModels().catch((error) => showError('models-error', error));
}

$('try-form').addEventListener('change', ({ target }) => {
  if (target.name === 'task' || target.id === 'model') fillForm();
});
$('try-form').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) $('try-form').requestSubmit();
});
$('try-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  if ($('run').disabled) return;
  $('run').disabled = true;
  showError('try-error');
  try {
    await runForm();
  } catch (error) {
    clearResult();
    showError('try-error', error);
  } finally {
    $('run').disabled = false;
  }
});
$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  key = $('key').value.trim();
  $('key').value = '';
  $('key-form').hidden = true;
  $('metrics').hidden = true; // a link sends no key
  if ($('try-form').hidden) start();
  else $('try-form').requestSubmit();
});
for (const link of document.querySelectorAll('footer a')) link.href = base + link.getAttribute('href');
addEventListener('hashchange', showView);
showView();
start();
