// Ask the server. The key is kept in this variable alone.
const base = location.pathname.replace(/\/*$/, '/');
const server = location.origin + base.replace(/\/$/, '');
let key = '';

class Refused extends Error {}

async function ask(path, body) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const options = { headers, cache: 'no-store' };
  if (body !== undefined) {
    Object.assign(options, { method: 'POST', body: JSON.stringify(body), headers: { ...headers, 'content-type': 'application/json' } });
  }
  let answer, text;
  try {
    answer = await fetch(base + path, options);
    if (answer.ok) {
      showState(true);
      return answer;
    }
    text = await answer.text();
  } catch {
    showState(false);
    throw new Refused('The server does not answer. Look whether it still runs, then try again.');
  }
  showState(true);
  let message = text.slice(0, 500) || `The server answered with status ${answer.status}.`;
  try {
    const { error } = JSON.parse(text);
    message = error.message ?? error;
  } catch { /* not JSON: a proxy, perhaps */ }
  if (answer.status === 401) askForKey();
  throw new Refused(message);
}

// Vectors of texts, divided by their norms, with what they cost.
async function embed(request) {
  const begun = performance.now();
  const answer = await ask('v1/embeddings', { ...request, encoding_format: 'base64' });
  const { data, usage } = await answer.json();
  const ms = performance.now() - begun;
  const vectors = data.map(({ embedding }) => unit(floats(embedding)));
  return { vectors, tokens: usage.prompt_tokens, cut: Number(answer.headers.get('x-whiten-truncated') ?? 0), ms };
}

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

function unit(vector) {
  const norm = Math.hypot(...vector);
  return norm > 0 ? vector.map((value) => value / norm) : vector;
}

async function tokens(request) {
  return (await (await ask('tokenize', request)).json())[0];
}

async function json(path) {
  return (await ask(path)).json();
}

function infoPath(model) {
  return `models/${model.split('/').map(encodeURIComponent).join('/')}/info`;
}

// Cosines of all vectors with others; the page stays usable meanwhile.
async function cosines(vectors, others) {
  const rows = [];
  let since = performance.now();
  for (const one of vectors) {
    rows.push(Float32Array.from(others, (other) => {
      let sum = 0;
      for (let place = 0; place < one.length; place += 1) sum += one[place] * other[place];
      return Math.max(-1, Math.min(1, sum));
    }));
    if (performance.now() - since > 40) {
      await new Promise((next) => setTimeout(next));
      since = performance.now();
    }
  }
  return rows;
}
