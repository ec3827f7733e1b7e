// What was just tried, as a program. Keys are never written into it.
const MOST = 10_000;

const PROGRAMS = {
  curl: (body, url, keyed) => [
    `curl -s ${url}/v1/embeddings \\`,
    ...(keyed ? ['  -H "Authorization: Bearer $WHITEN_API_KEY" \\'] : []),
    "  -H 'Content-Type: application/json' \\",
    `  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`,
  ],
  Python: ({ input, model, dimensions, ...others }, url, keyed) => [
    ...(keyed ? ['import os', ''] : []),
    'from openai import OpenAI',
    '',
    `client = OpenAI(base_url="${url}/v1", api_key=${keyed ? 'os.environ["WHITEN_API_KEY"]' : '"none"'})`,
    `texts = ${list(input)}`,
    'answer = client.embeddings.create(',
    `    model=${JSON.stringify(model)},`,
    '    input=texts,',
    '    encoding_format="float",',
    ...(dimensions ? [`    dimensions=${dimensions},`] : []),
    ...(Object.keys(others).length ? [`    extra_body=${JSON.stringify(others)},`] : []),
    ')',
    'vectors = [item.embedding for item in answer.data]',
    'print(len(vectors), "vectors of", len(vectors[0]))',
  ],
  JavaScript: ({ input, ...others }, url, keyed) => [
    `const texts = ${list(input)};`,
    `const answer = await fetch('${url}/v1/embeddings', {`,
    "  method: 'POST',",
    keyed
      ? "  headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${process.env.WHITEN_API_KEY}` },"
      : "  headers: { 'Content-Type': 'application/json' },",
    `  body: JSON.stringify({ ...${JSON.stringify(others)}, input: texts }),`,
    '});',
    'if (!answer.ok) throw new Error(await answer.text());',
    'const vectors = (await answer.json()).data.map((item) => item.embedding);',
    'console.log(vectors.length, "vectors of", vectors[0].length);',
  ],
  Java: (body, url, keyed) => [
    'import java.net.URI;',
    'import java.net.http.*;',
    '',
    'class Embed {',
    '    public static void main(String[] arguments) throws Exception {',
    `        var body = ${JSON.stringify(JSON.stringify(body))};`,
    `        var request = HttpRequest.newBuilder(URI.create("${url}/v1/embeddings"))`,
    '                .header("Content-Type", "application/json")',
    ...(keyed ? ['                .header("Authorization", "Bearer " + System.getenv("WHITEN_API_KEY"))'] : []),
    '                .POST(HttpRequest.BodyPublishers.ofString(body)).build();',
    '        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());',
    '        System.out.println(answer.statusCode() + " " + answer.body());',
    '    }',
    '}',
  ],
};

function list(texts) {
  return `[\n${texts.map((text) => `    ${JSON.stringify(text)},\n`).join('')}]`;
}

// The first texts, which a terminal and Java's literals can hold.
function firstTexts(texts) {
  let room = MOST;
  return texts.map((text) => {
    const kept = Array.from(text.slice(0, room)).join('').replace(/[\ud800-\udbff]$/, '');
    room -= kept.length;
    return kept;
  }).filter(Boolean);
}

let language = 'curl';

// Return the request as programs, of which one is shown.
function codeOf(request) {
  const input = firstTexts(request.input);
  const whole = input.length === request.input.length && input.at(-1) === request.input.at(-1);
  const code = el('code');
  const said = el('span', { class: 'hint', role: 'status' });
  const show = () => { code.textContent = PROGRAMS[language]({ ...request, input }, server, Boolean(key)).join('\n'); };
  const choices = Object.keys(PROGRAMS).map((name) => el('label', {},
    el('input', { type: 'radio', name: 'language', value: name, checked: name === language, change: () => {
      language = name;
      said.textContent = '';
      show();
    } }), name));
  const copy = el('button', { type: 'button', class: 'plain', click: async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = 'Copied';
    } catch { // browsers give the clipboard to HTTPS and to this machine alone
      getSelection().selectAllChildren(code);
      said.textContent = 'Selected: press Ctrl+C';
    }
  } }, 'Copy');
  show();
  const note = whole ? [] : [el('p', { class: 'figures' }, `With the first ${count(MOST, 'character')} of what was tried.`)];
  const tabs = el('div', { class: 'tabs', role: 'radiogroup', 'aria-label': 'Language' }, el('h2', {}, 'Copy as'), ...choices, said, copy);
  return el('div', { class: 'card' }, tabs, ...note, el('pre', { tabindex: 0, 'aria-label': 'Program' }, code));
}
