// Begin: show the view of the address, ask for a key if the server wants one, read what is served.
const VIEWS = ['try', 'compare', 'models', 'now'];
const infos = new Map();
let [starting, started] = [false, false];

function showState(up) {
  const words = up ? 'Answering' : 'Does not answer';
  if ($('state').textContent !== words) $('state').textContent = words;
  $('dot').className = `dot ${up ? 'up' : 'down'}`;
}

function askForKey() {
  if (!$('key-form').hidden) return;
  $('key-form').hidden = false;
  $('key').focus();
}

function showView() {
  const name = location.hash.slice(1);
  if (name && !VIEWS.includes(name)) return; // the link that skips to the content
  const view = name || 'try';
  for (const one of VIEWS) {
    $(one).hidden = one !== view;
    const link = document.querySelector(`nav a[href="#${one}"]`);
    if (one === view) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = `${$(`${view}-title`).textContent} – whiten`;
  if (view === 'now') look();
}

async function start() {
  if (starting) return;
  starting = true;
  fail('try-error');
  try {
    const first = await json('info');
    for (const name of first.whiten.models) infos.set(name, await json(infoPath(name)));
    $('version').textContent = first.version;
  } catch (error) {
    const asksForFirstKey = !key && !$('key-form').hidden;
    fail('try-error', asksForFirstKey ? undefined : error);
    return;
  } finally {
    starting = false;
  }
  started = true;
  startTry();
  startCompare();
  startModels();
}

$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const typed = $('key').value.trim();
  if (!/^[!-~]+$/.test(typed)) {
    fail('try-error', new Refused('A key has letters, digits and signs of ASCII, and no blanks.'));
    return;
  }
  key = typed;
  $('key').value = '';
  $('key-form').hidden = true;
  if (started) $('try-form').requestSubmit();
  else start();
});
$('api').href = `${base}openapi.json`;
addEventListener('hashchange', showView);
showView();
start().then(look);
