// Search sentences by meaning, all in this page.
import { open } from 'whiten';

const SHOWN = 5;
const element = (id) => document.getElementById(id);
const [form, question, sentences, answers, status] = ['search', 'question', 'sentences', 'answers', 'status'].map(element);

/** Vectors of sentences, by the sentence: one that was there before is not embedded again. */
const vectors = new Map();
let encoder;
let latest = 0;

const lines = () => [...new Set(sentences.value.split('\n').map((line) => line.trim()).filter(Boolean))];
const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);

function say(words, failed = false) {
  status.textContent = words;
  status.classList.toggle('failed', failed);
}

function showProgress(progress) {
  const loaded = new Map();
  return ({ file, loaded: bytes, total }) => {
    loaded.set(file, [bytes, total]);
    const [done, all] = [0, 1].map((place) => [...loaded.values()].reduce((sum, pair) => sum + pair[place], 0));
    progress.value = done / all;
    say(`Loading the model: ${(done / 1e6).toFixed(1)} of ${(all / 1e6).toFixed(1)} MB`);
  };
}

async function embedNew(texts) {
  const wanted = texts.filter((text) => !vectors.has(text));
  const found = await encoder.encode(wanted, { normalize: true });
  wanted.forEach((text, index) => vectors.set(text, found[index]));
}

function show(ranking) {
  answers.replaceChildren(...ranking.map(({ text, score }) => {
    const item = document.createElement('li');
    const value = document.createElement('data');
    item.textContent = text;
    item.style.setProperty('--share', `${Math.max(0, score) * 100}%`);
    value.value = score;
    value.textContent = score.toFixed(2);
    value.title = 'cosine';
    item.append(value);
    return item;
  }));
  answers.setAttribute('aria-busy', 'false');
}

async function search() {
  const turn = ++latest;
  const texts = lines();
  element('count').textContent = `(${texts.length})`;
  if (!question.value.trim() || !texts.length) {
    show([]);
    say(texts.length ? 'Type a question.' : 'Paste sentences, one on each line.');
    return;
  }
  const started = performance.now();
  await embedNew(texts);
  const wanted = await encoder.encode(question.value, { normalize: true });
  if (turn !== latest) return; // a newer search goes on
  const ranking = texts.map((text) => ({ text, score: dot(vectors.get(text), wanted) }));
  show(ranking.sort((a, b) => b.score - a.score).slice(0, SHOWN));
  say(`${texts.length} sentences ordered in ${Math.max(1, Math.round(performance.now() - started))} ms.`);
}

const searched = () => search().catch((error) => say(error.message, true));

function whenStill(call, delay = 150) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, delay);
  };
}

try {
  encoder = await open(new URL('bundle/', document.baseURI), { onProgress: showProgress(element('progress')) });
  await encoder.encode(question.value);
  element('times').textContent = `First vector after ${(performance.now() / 1000).toFixed(1)} s.`;
  document.body.dataset.firstVector = performance.now();
  element('loading').hidden = true;
  for (const control of form.elements) control.disabled = false;
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    searched();
  });
  question.addEventListener('input', whenStill(searched));
  sentences.addEventListener('input', whenStill(searched, 400));
  await search();
  document.body.dataset.ready = 'true';
} catch (error) {
  element('loading').hidden = true;
  say(error.message, true);
}
