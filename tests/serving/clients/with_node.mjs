// Embeds texts with each client by its default settings: node with_node.mjs URL TEXTS.json OUT.json [WAY]
//
// TEXTS.json has each client's texts by its name, OUT.json gets its outcome: vectors or an error, and the statuses of
// the answers. WAY "hurry" shortens the waits between a client's attempts to a thousandth; "overload" keeps the server
// busy until a request of the client is refused.

import { readFileSync, writeFileSync } from 'node:fs';

const [url, file, out, way] = process.argv.slice(2);
const model = 'small';
const apiKey = 'none';
const key = { baseURL: `${url}/v1`, apiKey };
const ATTEMPTS = { least: 1_000, most: 300_000 }; // milliseconds between attempts; shorter or longer waits are of fetch

const send = globalThis.fetch;
const sleep = globalThis.setTimeout;
let statuses = [];
let onRefusal = () => {};

globalThis.fetch = async (...request) => {
  const answer = await send(...request);
  statuses.push(answer.status);
  if (answer.status === 429) await onRefusal();
  return answer;
};
if (way === 'hurry') {
  const shorten = (wait) => (wait >= ATTEMPTS.least && wait < ATTEMPTS.most ? wait / 1000 : wait);
  globalThis.setTimeout = (then, wait, ...rest) => sleep(then, shorten(wait), ...rest);
}

// After `fetch` was replaced, as clients may take it when they are loaded.
const { default: OpenAI, AzureOpenAI } = await import('openai');
const { Ollama } = await import('ollama');
const { OpenAIEmbeddings } = await import('@langchain/openai');
const { OllamaEmbeddings } = await import('@langchain/ollama');
const { embed, embedMany } = await import('ai');
const { createOpenAI } = await import('@ai-sdk/openai');
const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible');

const openai = (client) => async (input) => {
  const answer = await client.embeddings.create({ model, input });
  return answer.data.map((row) => row.embedding);
};
const langchain = (client) => async (texts) =>
  texts.length > 1 ? client.embedDocuments(texts) : [await client.embedQuery(texts[0])];
const vercel = (client) => async (values) =>
  values.length > 1
    ? (await embedMany({ model: client, values })).embeddings
    : [(await embed({ model: client, value: values[0] })).embedding];
const ollama = new Ollama({ host: url });
const one_by_one = async (texts) => {
  const vectors = [];
  for (const prompt of texts) vectors.push((await ollama.embeddings({ model, prompt })).embedding);
  return vectors;
};
const requestOptions = { embeddingOnly: true, useMmap: true, flash_attn: true };

const CLIENTS = {
  openai: openai(new OpenAI(key)),
  azure: openai(new AzureOpenAI({ endpoint: url, apiKey, apiVersion: '2024-10-21', deployment: model })),
  ollama: async (input) => (await ollama.embed({ model, input })).embeddings,
  ollama_embeddings: one_by_one,
  langchain_openai: langchain(new OpenAIEmbeddings({ model, apiKey, configuration: { baseURL: key.baseURL } })),
  langchain_ollama: langchain(new OllamaEmbeddings({ model, baseUrl: url })),
  langchain_ollama_options: langchain(new OllamaEmbeddings({ model, baseUrl: url, requestOptions })),
  vercel_openai: vercel(createOpenAI(key).embedding(model)),
  vercel_compatible: vercel(createOpenAICompatible({ name: 'whiten', ...key }).embeddingModel(model)),
};

// Keeps the server busy, and returns a function that ends this, and waits until the server takes requests again.
function load() {
  const end = new AbortController();
  const post = (input, signal) =>
    send(`${url}/v1/embeddings`, { method: 'POST', body: JSON.stringify({ model, input }), signal });
  const texts = Array(512).fill('busy '.repeat(60));
  const repeat = async () => {
    while (!end.signal.aborted) {
      const answer = await post(texts, end.signal).catch(() => null);
      await answer?.arrayBuffer().catch(() => null);
    }
  };
  const loops = Array.from({ length: 8 }, repeat);
  return async () => {
    end.abort();
    await Promise.all(loops);
    while ((await post('short')).status !== 200);
  };
}

async function attempt(client, texts) {
  try {
    return { vectors: await client(texts) };
  } catch (error) {
    const name = error.name === 'Error' ? error.constructor.name : error.name;
    return { error: name, message: error.message };
  }
}

async function outcome(client, texts) {
  statuses = [];
  if (way !== 'overload') return { ...(await attempt(client, texts)), statuses };
  const stop = load();
  let idle; // a promise, once a request was refused
  onRefusal = () => (idle ??= stop());
  let last;
  do {
    statuses = [];
    last = await attempt(client, texts);
  } while (!idle && !last.error);
  await onRefusal();
  return { ...last, statuses };
}

const outcomes = {};
for (const [name, texts] of Object.entries(JSON.parse(readFileSync(file, 'utf8')))) {
  outcomes[name] = await outcome(CLIENTS[name], texts);
}
writeFileSync(out, JSON.stringify(outcomes));
