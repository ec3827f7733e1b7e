// Now: the last five minutes, from /metrics, as long as this page is open and seen.
const WINDOW = 300_000;
const MINUTE = 60_000;
const OFTEN = 2_000;
const SELDOM = 10_000;
let samples = [];
let timer;

// Samples of Prometheus' text format: [name, labels, value].
function parsed(page) {
  return page.split('\n').flatMap((line) => {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) return [];
    const labels = Object.fromEntries([...(match[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    return [[match[1], labels, Number(match[3])]];
  });
}

function sampleOf(page) {
  const sample = { time: Date.now(), values: {}, errors: {}, buckets: {}, models: {} };
  const add = (place, name, value) => { place[name] = (place[name] ?? 0) + value; };
  for (const [name, labels, value] of parsed(page)) {
    const embeds = labels.model && labels.route !== '/tokenize' && labels.route !== '/info';
    if (name === 'whiten_requests_total') {
      if (embeds) add(sample.values, 'requests', value);
      if (labels.status >= '400') add(sample.errors, labels.status, value);
    } else if (name === 'whiten_request_seconds_bucket') {
      if (embeds) add(sample.buckets, labels.le, value);
    } else if (['whiten_texts_total', 'whiten_tokens_total', 'whiten_truncated_total'].includes(name)) {
      add(sample.values, name, value);
      add(sample.models[labels.model] ??= {}, name, value);
    } else add(sample.values, name, value);
  }
  return sample;
}

function growth(from, to, name, of = 'values') {
  return (to[of][name] ?? 0) - (from[of][name] ?? 0);
}

// A quantile of request times between two samples, in ms, as Prometheus' histogram_quantile computes it.
function quantile(share, from, to) {
  const limits = Object.keys(to.buckets).map((name) => [name === '+Inf' ? Infinity : Number(name), growth(from, to, name, 'buckets')]);
  limits.sort(([one], [other]) => one - other);
  const all = limits.at(-1)?.[1] ?? 0;
  if (!all) return undefined;
  let [below, before] = [0, 0];
  for (const [limit, number] of limits) {
    if (number >= share * all) {
      return 1000 * (limit === Infinity ? below : below + ((limit - below) * (share * all - before)) / (number - before || 1));
    }
    [below, before] = [limit, number];
  }
  return undefined;
}

function tile(title, value, more = '', line = []) {
  const children = [el('h2', {}, title), el('p', { class: 'value' }, value), el('p', { class: 'more' }, more)];
  return el('div', { class: 'card tile' }, ...children, ...(line.length > 1 ? [spark(line)] : []));
}

function spark(line) {
  const svg = (name, attributes) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
    return element;
  };
  const top = Math.max(...line.map(([, value]) => value)) || 1;
  const end = line.at(-1)[0];
  const span = Math.min(Math.max(end - line[0][0], MINUTE), WINDOW);
  const points = line.map(([time, value]) => `${(100 - ((end - time) / span) * 100).toFixed(2)},${(30 - (value / top) * 28).toFixed(2)}`);
  const chart = svg('svg', { viewBox: '0 0 100 30', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  const [from, to] = [points[0].split(',')[0], points.at(-1).split(',')[0]];
  chart.append(svg('path', { class: 'area', d: `M${from},30L${points.join('L')}L${to},30Z` }), svg('path', { d: `M${points.join('L')}` }));
  return chart;
}

function showNow() {
  const last = samples.at(-1);
  if (!last) return;
  const first = samples[0];
  const seconds = (last.time - first.time) / 1000;
  const rates = (name) => samples.slice(1).map((sample, place) => {
    const before = samples[place];
    return [sample.time, (growth(before, sample, name) * 1000) / (sample.time - before.time)];
  });
  const rate = (name) => (seconds ? (growth(first, last, name) / seconds).toFixed(1) : '–');
  const level = (name) => samples.map((sample) => [sample.time, sample.values[name] ?? 0]);
  const errors = Object.keys(last.errors).map((status) => [status, growth(first, last, status, 'errors')]).filter(([, number]) => number);
  const wrong = errors.reduce((sum, [, number]) => sum + number, 0);
  const time = (share) => {
    const value = quantile(share, first, last);
    return value === undefined ? '–' : milliseconds(value);
  };
  const whole = (name) => Math.round(last.values[name] ?? 0);
  $('now-note').textContent = seconds < 1
    ? 'Counting from now on.'
    : `Of the last ${seconds < 120 ? `${Math.round(seconds)} seconds` : `${Math.round(seconds / 60)} minutes`}, in which this page was open; five minutes at most.`;
  $('now-tiles').replaceChildren(
    tile('Requests a second', rate('requests'), `${count(growth(first, last, 'requests'), 'request')}`, rates('requests')),
    tile('Texts a second', rate('whiten_texts_total'), `${count(growth(first, last, 'whiten_tokens_total'), 'token')}`, rates('whiten_texts_total')),
    tile('Time of a request, p50', time(0.5), `p95: ${time(0.95)}`),
    tile('Waiting', count(whole('whiten_queue_requests'), 'request'), `${count(whole('whiten_queue_tokens'), 'token')}, ${milliseconds(1000 * (last.values.whiten_queue_seconds_of_work ?? 0))} of work`, level('whiten_queue_tokens')),
    tile('Memory', bytes(last.values.process_resident_memory_bytes ?? 0), '', level('process_resident_memory_bytes')),
    tile('Errors', `${wrong}`, errors.map(([status, number]) => `${number} × ${status}`).join(', ') || 'none'));
  const rows = Object.keys(last.models).map((model) => [model, ...['whiten_texts_total', 'whiten_tokens_total', 'whiten_truncated_total'].map(
    (name) => ((last.models[model][name] ?? 0) - (first.models[model]?.[name] ?? 0)).toLocaleString('en'))]);
  $('now-tables').replaceChildren(...(rows.length ? [el('div', { class: 'card' }, table('By model', ['Model', 'Texts#', 'Tokens#', 'Cut#'], rows))] : []));
}

async function look() {
  clearTimeout(timer);
  if (!document.hidden) {
    try {
      const sample = sampleOf(await (await ask('metrics')).text());
      if (!started && $('key-form').hidden) start();
      if (samples.length && growth(samples.at(-1), sample, 'process_start_time_seconds')) samples = []; // another process
      samples = [...samples, sample].filter(({ time }) => time >= sample.time - WINDOW);
      showNow();
    } catch {
      const last = samples.at(-1);
      $('now-note').textContent = `The server does not answer.${last ? ` These are the figures of ${new Date(last.time).toLocaleTimeString()}.` : ''}`;
    }
  }
  timer = setTimeout(look, $('now').hidden ? SELDOM : OFTEN);
}

document.addEventListener('visibilitychange', look);
