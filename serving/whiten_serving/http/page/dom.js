// Make and fill elements. Texts become text nodes: nothing of them is markup.
const $ = (id) => document.getElementById(id);

function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(attribute, value);
    else if (value !== false && value !== undefined) element.setAttribute(attribute, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}

const LABEL = 160;

// The beginning of a text, for labels.
function short(text, most = LABEL) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString('en')} ${number === 1 ? one : many}`;
}

function fixed(number) {
  return number.toFixed(2).replace('-0.00', '0.00').replace('-', '−');
}

function milliseconds(value) {
  return `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString('en')} ms`;
}

function bytes(size) {
  const [unit, word] = size >= 1e9 ? [1e9, 'GB'] : size >= 1e6 ? [1e6, 'MB'] : [1e3, 'kB'];
  return `${(size / unit).toFixed(size / unit < 10 ? 1 : 0)} ${word}`;
}

// Rows of a table: each cell is a text, a node or a number; the first column names the row.
function table(caption, columns, rows) {
  const heads = columns.map((name) => el('th', { scope: 'col', class: name.endsWith('#') && 'number' }, name.replace('#', '')));
  const cell = (value, column) => {
    const attributes = { class: columns[column].endsWith('#') ? 'number' : 'text', dir: 'auto' };
    return column ? el('td', attributes, value) : el('th', { ...attributes, scope: 'row' }, value);
  };
  return el('div', { class: 'scroll' }, el('table', { class: 'list' },
    el('caption', {}, caption),
    el('thead', {}, el('tr', {}, ...heads)),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...row.map(cell))))));
}

function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => el('option', { value, selected: value === chosen }, text)));
}

function fail(place, error) {
  const element = $(place);
  element.hidden = !error;
  element.textContent = error ? (error instanceof Refused ? error.message : `The page failed: ${error.message}`) : '';
}

// Lines that are not blank, with their numbers as the field shows them.
function linesOf(field) {
  return field.value.split('\n').map((text, place) => ({ text, label: `${place + 1}` })).filter(({ text }) => text.trim());
}

// Run a form's work, once at a time, by its button or by Ctrl+Enter.
function onSubmit(form, errorPlace, work) {
  const button = form.querySelector('button');
  form.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    button.disabled = true;
    fail(errorPlace);
    try {
      await work();
    } catch (error) {
      fail(errorPlace, error);
    } finally {
      button.disabled = false;
    }
  });
}
