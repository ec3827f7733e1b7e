// Heat maps: a table with numbers for few lines, a picture that is read cell by cell for many.
const NUMBERED = 24;
const WIDEST = 560;
const drawn = new Set();

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => drawn.forEach((draw) => draw()));

function rgb(name) {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
  const wide = hex.length === 3 ? [...hex].map((digit) => digit + digit).join('') : hex;
  return [0, 2, 4].map((start) => parseInt(wide.slice(start, start + 2), 16));
}

// A function from similarities to colours: of [-1, 1], or of the values that occur.
function scale(range) {
  const [cold, hot, below] = ['--cold', '--hot', '--below'].map(rgb);
  return (value) => {
    const share = range ? (value - range[0]) / (range[1] - range[0] || 1) : value;
    const end = share < 0 ? below : hot;
    const part = Math.min(Math.abs(share), 1);
    return cold.map((from, place) => Math.round(from + (end[place] - from) * part));
  };
}

// Black or white, whichever is easier to read on a colour (WCAG's luminance).
function inkOn(colour) {
  const [red, green, blue] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? '#000' : '#fff';
}

function rangeOf(rows) {
  let [low, high] = [1, -1];
  rows.forEach((row, at) => row.forEach((value, place) => {
    if (at !== place) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }));
  return low <= high ? [low, high] : [-1, 1];
}

// Return a map of similarities of lines with each other, and its legend.
function heatMap(caption, lines, rows) {
  const range = rangeOf(rows);
  const host = el('div');
  const draw = lines.length <= NUMBERED ? numbers(host, caption, lines, rows) : picture(host, caption, lines, rows);
  const stretch = el('input', { type: 'checkbox', change: () => paint() });
  const bar = el('i', { 'aria-hidden': true });
  const [least, most] = [el('span'), el('span')];
  const paint = () => {
    if (!host.isConnected && host.dataset.shown) drawn.delete(paint);
    draw(scale(stretch.checked && range));
    bar.classList.toggle('stretched', stretch.checked);
    const [low, high] = stretch.checked ? range : [-1, 1];
    least.textContent = fixed(low);
    most.textContent = fixed(high);
    host.dataset.shown = host.isConnected || '';
  };
  drawn.add(paint);
  paint();
  const legend = el('p', { class: 'legend' }, 'Cosine similarity', least, bar, most);
  if (lines.length > 2) legend.append(el('label', { class: 'check' }, stretch, 'Stretch the colours to these values'));
  return el('div', { class: 'card heat' }, host, legend);
}

function numbers(host, caption, lines, rows) {
  const cells = [];
  const heads = lines.map(({ label, text }) => el('th', { scope: 'col', title: short(text) }, label));
  const body = rows.map((row, at) => {
    const { label, text } = lines[at];
    const head = el('th', { scope: 'row', title: short(text), dir: 'auto' }, el('span', { class: 'at' }, label), short(text));
    return el('tr', {}, head, ...Array.from(row, (value) => {
      const cell = el('td', {}, fixed(value));
      cells.push([cell, value]);
      return cell;
    }));
  });
  host.className = 'scroll';
  host.tabIndex = 0;
  host.setAttribute('role', 'group');
  host.setAttribute('aria-label', caption);
  host.append(el('table', { class: lines.length > 12 ? 'map small' : 'map' },
    el('caption', {}, caption),
    el('thead', {}, el('tr', {}, el('td', {}), ...heads)),
    el('tbody', {}, ...body)));
  return (colourOf) => cells.forEach(([cell, value]) => {
    const colour = colourOf(value);
    cell.style.background = `rgb(${colour})`;
    cell.style.color = inkOn(colour);
  });
}

// One pixel a cell, made larger by the browser; the mouse or the arrow keys read a cell.
function picture(host, caption, lines, rows) {
  const size = lines.length;
  const canvas = el('canvas', { width: size, height: size, tabindex: 0, role: 'img' });
  const width = Math.max(1, Math.round(WIDEST / size)) * size;
  canvas.style.width = `${width}px`;
  canvas.style.aspectRatio = '1';
  const cell = el('span', { class: 'cell', hidden: true });
  const read = el('div', { class: 'read', role: 'status' });
  let [across, down] = [0, 0];
  const show = () => {
    cell.hidden = false;
    cell.style.left = `${(across / size) * 100}%`;
    cell.style.top = `${(down / size) * 100}%`;
    cell.style.width = cell.style.height = `calc(${100 / size}% + 4px)`;
    const [first, second] = [lines[down], lines[across]];
    read.replaceChildren(el('b', {}, fixed(rows[down][across])),
      el('span', {}, first.label), el('span', { class: 'clip', dir: 'auto' }, short(first.text)),
      el('span', {}, second.label), el('span', { class: 'clip', dir: 'auto' }, short(second.text)));
  };
  const within = (value) => Math.max(0, Math.min(size - 1, value));
  canvas.addEventListener('pointermove', (event) => {
    const box = canvas.getBoundingClientRect();
    [across, down] = [event.clientX - box.left, event.clientY - box.top].map((at) => within(Math.floor((at / box.width) * size)));
    show();
  });
  canvas.addEventListener('keydown', (event) => {
    const step = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    [across, down] = [within(across + move[0]), within(down + move[1])];
    show();
  });
  canvas.addEventListener('focus', show);
  canvas.setAttribute('aria-label', `${caption} The arrow keys read one pair after another; with Shift, every tenth.`);
  read.append(el('span', { class: 'clip' }, 'Point at a cell, or use the arrow keys, to read it.'));
  host.append(el('h2', {}, caption), el('div', { class: 'picture' }, canvas, cell), read);
  return (colourOf) => {
    const context = canvas.getContext('2d');
    const image = context.createImageData(size, size);
    rows.forEach((row, at) => row.forEach((value, place) => {
      const [red, green, blue] = colourOf(value);
      const start = (at * size + place) * 4;
      image.data[start] = red;
      image.data[start + 1] = green;
      image.data[start + 2] = blue;
      image.data[start + 3] = 255;
    }));
    context.putImageData(image, 0, 0);
  };
}

// The pairs of lines that rank highest by a figure.
function topPairs(size, figure, most) {
  const top = [];
  for (let first = 0; first < size; first += 1) {
    for (let second = first + 1; second < size; second += 1) {
      const value = figure(first, second);
      if (top.length === most && value <= top[most - 1].value) continue;
      top.push({ first, second, value });
      top.sort((one, other) => other.value - one.value);
      top.length = Math.min(top.length, most);
    }
  }
  return top;
}
