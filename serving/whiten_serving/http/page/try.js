// Try: lines compared with each other, or ranked for a query.
const SAMPLES = [
  'A heron waits in the shallow water and spears a trout.',
  'Kingfishers dive from a branch to seize small fish.',
  'The bank lowered the rate of its mortgages.',
  'Borrowing money for a house has become cheaper.',
  'The orchestra rehearsed a symphony by Mahler.',
  'Der Graureiher steht still im Wasser und fängt Fische.',
];
const SHOWN = 50;
const AROUND = 90; // letters that are shown on each side of a cut

function task() {
  return new FormData($('try-form')).get('task');
}

// What a choice of a prompt adds to a request: by the task of the texts, or by name.
function promptOf(select) {
  const [kind, name] = [select.value.slice(0, 5), select.value.slice(5)];
  return kind === 'task:' ? { input_type: name } : kind === 'name:' ? { prompt_name: name } : {};
}

function fillTry() {
  const model = $('try-model').value;
  const { whiten } = infos.get(model);
  const ranks = task() === 'rank';
  const names = whiten.prompts.map((name) => [`name:${name}`, name]);
  const pairs = [['', whiten.default_prompt_name ?? 'none'], ['task:query', 'as a query'], ['task:document', 'as a document'], ...names];
  for (const [id, chosen] of [['query-prompt', 'task:query'], ['prompt', ranks ? 'task:document' : '']]) {
    options($(id), pairs, names.length && ranks ? chosen : '');
  }
  document.querySelectorAll('.prompts').forEach((field) => { field.hidden = !names.length; });
  document.querySelectorAll('.ranks').forEach((field) => { field.hidden ||= !ranks; });
  $('query').parentElement.hidden = !ranks;
  $('prompt-label').textContent = ranks ? 'Prompt of the texts' : 'Prompt';
  $('dimensions').placeholder = `all ${whiten.dimension}`;
  $('run').textContent = ranks ? 'Rank' : 'Compare';
}

async function runTry() {
  const model = $('try-model').value;
  const ranks = task() === 'rank';
  const lines = linesOf($('texts'));
  const query = { text: $('query').value, label: 'Query' };
  if (!lines.length) throw new Refused('There is no text. Write at least one line.');
  if (ranks && !query.text.trim()) throw new Refused('There is no query. Write one, or compare the lines.');
  const width = $('dimensions').value ? { dimensions: Number($('dimensions').value) } : {};
  const request = { model, input: lines.map(({ text }) => text), ...width, ...promptOf($('prompt')) };
  const asked = { model, input: [query.text], ...width, ...promptOf($('query-prompt')) };
  const found = await embed(request);
  const first = ranks ? await embed(asked) : undefined;
  const rows = await cosines(first ? first.vectors : found.vectors, found.vectors);
  const all = [found, ...(first ? [first] : [])];
  const sum = (name) => all.reduce((total, one) => total + one[name], 0);
  $('try-done').textContent = [
    count(lines.length + (ranks ? 1 : 0), 'text'), count(sum('tokens'), 'token'), milliseconds(sum('ms')),
    count(found.vectors[0].length, 'dimension'),
  ].join(' · ');
  $('try-result').replaceChildren(ranks ? ranking(query, lines, rows[0]) : similarities(lines, rows));
  $('try-code').replaceChildren(codeOf(request));
  $('try-cut').replaceChildren();
  const cut = [];
  if (found.cut) cut.push(...await cutTexts(model, lines, request, found.cut));
  if (first?.cut) cut.push(...await cutTexts(model, [query], asked, 1));
  if (cut.length) $('try-cut').replaceChildren(cutList(model, cut, sum('cut')));
}

function similarities(lines, rows) {
  const map = heatMap(`Similarity of ${count(lines.length, 'line')}`, lines, rows);
  if (lines.length < 3) return map;
  const top = topPairs(lines.length, (first, second) => rows[first][second], 5);
  const cells = top.map(({ first, second, value }) => [fixed(value), `${lines[first].label}  ${short(lines[first].text)}`, `${lines[second].label}  ${short(lines[second].text)}`]);
  return el('div', { class: 'results' }, map, el('div', { class: 'card' }, table('Closest pairs', ['Similarity#', 'Line', 'Line'], cells)));
}

function ranking(query, lines, row) {
  const order = lines.map((line, place) => ({ ...line, value: row[place] })).sort((one, other) => other.value - one.value);
  const host = el('div', { class: 'card' });
  const show = (most) => {
    const cells = order.slice(0, most).map(({ label, text, value }, place) => {
      const bar = el('i');
      bar.style.width = `${Math.max(0, value) * 100}%`;
      return [`${place + 1}`, el('span', { class: 'ranked' }, el('span', { class: 'bar', 'aria-hidden': true }, bar), fixed(value)), short(text), label];
    });
    host.replaceChildren(table(`Ranked for “${short(query.text, 80)}”`, ['Rank#', 'Similarity', 'Text', 'Line#'], cells));
    if (most < order.length) {
      host.append(el('button', { type: 'button', class: 'plain', click: () => show(order.length) }, `Show all ${order.length}`));
    }
  };
  show(SHOWN);
  return host;
}

// Find which lines were cut, and where; the API says only how many.
async function cutTexts(model, lines, { input_type, prompt_name }, number) {
  const { whiten, max_input_length } = infos.get(model);
  const named = prompt_name ?? (input_type ? undefined : whiten.default_prompt_name ?? undefined);
  let own = 2;
  try {
    own = (await tokens({ model, inputs: '', prompt_name: named })).length;
  } catch { /* a prompt around the text, whose tokens cannot be counted alone */ }
  const most = max_input_length - own;
  const found = [];
  for (const line of [...lines].sort((one, other) => other.text.length - one.text.length).slice(0, 10)) {
    const letters = Array.from(line.text).slice(0, 100_000);
    const pieces = await tokens({ model, inputs: letters.join(''), add_special_tokens: false });
    if (pieces.length <= most) continue;
    const left = whiten.truncation_side === 'left';
    const at = left ? pieces[pieces.length - most].start : pieces[most - 1].stop;
    const more = line.text.length > letters.join('').length;
    const before = `${at > AROUND ? '…' : ''}${letters.slice(Math.max(0, at - AROUND), at).join('')}`;
    const after = `${letters.slice(at, at + AROUND).join('')}${more || at + AROUND < letters.length ? '…' : ''}`;
    found.push({ ...line, total: pieces.length, more, most, left, before, after });
    if (found.length === number) break;
  }
  return found;
}

function cutList(model, cut, number) {
  const items = cut.map(({ label, total, more, most, left, before, after }) => {
    const name = label === 'Query' ? label : `Line ${label}`;
    const words = `${name}: ${most.toLocaleString('en')} of ${more ? 'more than ' : ''}${count(total, 'token')} were read; ${left ? 'what is struck out, and all before it,' : 'what is struck out, and all after it,'} was cut.`;
    const excerpt = left ? [el('del', {}, before), el('span', {}, after)] : [el('span', {}, before), el('del', {}, after)];
    return el('li', {}, el('p', {}, words), el('p', { class: 'excerpt', dir: 'auto' }, ...excerpt));
  });
  const others = number > cut.length ? [el('p', { class: 'figures' }, `${count(number - cut.length, 'other text')} too.`)] : [];
  const title = `${count(number, 'text')} longer than the model reads (${count(infos.get(model).max_input_length, 'token')})`;
  return el('div', { class: 'card' }, el('h2', {}, title), el('ul', { class: 'cuts' }, ...items), ...others);
}

function startTry() {
  $('try-form').hidden = false;
  $('texts').value = SAMPLES.join('\n');
  options($('try-model'), [...infos.keys()].map((name) => [name, name]));
  document.querySelectorAll('.several').forEach((field) => { field.hidden = infos.size < 2; });
  $('try-form').addEventListener('change', (event) => {
    if (event.target.name === 'task' || event.target.id === 'try-model') fillTry();
  });
  onSubmit($('try-form'), 'try-error', runTry);
  fillTry();
  $('try-form').requestSubmit();
}
