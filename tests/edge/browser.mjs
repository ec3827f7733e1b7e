// Open a page in Chromium by the DevTools protocol, and report: stdin {page, chromium, profile, question, screenshot}.
import { spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';

const { page, chromium, profile, screenshot, question } = JSON.parse(readFileSync(0, 'utf8'));
const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--window-size=900,930', '--remote-debugging-pipe', `--user-data-dir=${profile}`];
// By pipe (descriptors 3 and 4): Node 20 has no WebSocket.
const browser = spawn(chromium, [...flags, 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
const [out, into] = [browser.stdio[3], browser.stdio[4]];
const waiting = new Map();
const requests = [];
const messages = [];
let number = 0;
let rest = Buffer.alloc(0);

into.on('data', (piece) => {
  rest = Buffer.concat([rest, piece]);
  for (let end; (end = rest.indexOf(0)) >= 0; rest = rest.subarray(end + 1)) received(JSON.parse(rest.subarray(0, end)));
});

function received({ id, result, error, method, params }) {
  if (id) {
    const [resolve, reject] = waiting.get(id);
    waiting.delete(id);
    error ? reject(new Error(error.message)) : resolve(result);
  } else if (method === 'Network.requestWillBeSent') requests.push(params.request.url);
  else if (method === 'Runtime.consoleAPICalled') messages.push(params.args.map((one) => one.value ?? one.description).join(' '));
  else if (method === 'Runtime.exceptionThrown') messages.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  else if (method === 'Network.loadingFinished') bytes += params.encodedDataLength;
}

let bytes = 0;
let session;
function send(method, params = {}) {
  out.write(`${JSON.stringify({ id: ++number, method, params, ...(session && { sessionId: session }) })}\0`);
  return new Promise((...both) => waiting.set(number, both));
}

async function evaluate(expression) {
  const { result, exceptionDetails } = await send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}

async function until(expression, seconds = 60) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await new Promise((next) => setTimeout(next, 50))) {
    if (await evaluate(expression)) return;
  }
  throw new Error(`never: ${expression}; the page says: ${await evaluate('document.body.innerText')}; ${messages}`);
}

async function key(name, code, text) {
  for (const type of ['keyDown', 'keyUp']) await send('Input.dispatchKeyEvent', { type, key: name, code: name, windowsVirtualKeyCode: code, ...(type === 'keyDown' && text && { text }) });
}

const READY = "document.body?.dataset.ready === 'true' || document.querySelector('.failed') !== null";
const ANSWERS = "[...document.querySelectorAll('#answers li')].map((item) => [item.firstChild.textContent, item.querySelector('data').value])";
const STATE = `({ answers: ${ANSWERS}, status: document.getElementById('status').textContent, firstVector: Number(document.body.dataset.firstVector), isolated: crossOriginIsolated, focused: document.activeElement.id })`;

async function load() {
  requests.length = 0;
  bytes = 0;
  await send('Page.navigate', { url: page });
  await until(`location.href !== 'about:blank' && (${READY})`);
  return { ...(await evaluate(STATE)), requests: [...requests], bytes };
}

async function picture(scheme, file) {
  await send('Emulation.setScrollbarsHidden', { hidden: true });
  await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
  writeFileSync(file, Buffer.from((await send('Page.captureScreenshot', { format: 'png' })).data, 'base64'));
}

try {
  const { targetInfos } = await send('Target.getTargets');
  const { targetId } = targetInfos.find((one) => one.type === 'page');
  ({ sessionId: session } = await send('Target.attachToTarget', { targetId, flatten: true }));
  for (const domain of ['Page', 'Network', 'Runtime']) await send(`${domain}.enable`);
  const first = await load();
  await send('Page.bringToFront');
  await key('Tab', 9);
  const tabbed = await evaluate('document.activeElement.id');
  await evaluate(`document.getElementById('question').value = ${JSON.stringify(question)}`);
  await key('Enter', 13, '\r');
  await until(`document.querySelector('#answers li')?.firstChild.textContent !== ${JSON.stringify(first.answers[0]?.[0])}`);
  const asked = { ...(await evaluate(STATE)), tabbed, requests: [...requests] };
  if (screenshot) {
    await evaluate('document.activeElement.blur()');
    await picture('light', screenshot);
    await picture('dark', screenshot.replace(/\.png$/, '-dark.png'));
  }
  const again = await load();
  process.stdout.write(JSON.stringify({ first, asked, again, messages }));
} finally {
  browser.kill();
  await once(browser, 'exit');
}
