// Compare: the same lines by two models of this server.
const PAIRS = 10;

function startCompare() {
  const names = [...infos.keys()];
  $('compare-one').hidden = names.length > 1;
  $('compare-form').hidden = names.length < 2;
  $('compare-one').textContent = 'This server has one model. Start it with two to compare them, such as: whiten serve one=BUNDLE two=BUNDLE';
  $('compare-texts').value = SAMPLES.join('\n');
  options($('first'), names.map((name) => [name, name]), names[0]);
  options($('second'), names.map((name) => [name, name]), names[1]);
  onSubmit($('compare-form'), 'compare-error', runCompare);
}

async function runCompare() {
  const models = [$('first').value, $('second').value];
  const lines = linesOf($('compare-texts'));
  if (lines.length < 2) throw new Refused('Write at least two lines.');
  const input = lines.map(({ text }) => text);
  const maps = [];
  const said = [];
  for (const model of models) {
    const found = await embed({ model, input });
    maps.push(await cosines(found.vectors, found.vectors));
    const cut = found.cut ? `, ${found.cut} cut` : '';
    said.push(`${model}: ${count(found.tokens, 'token')}${cut}, ${milliseconds(found.ms)}`);
  }
  const [first, second] = maps;
  const differences = topPairs(lines.length, (one, other) => Math.abs(first[one][other] - second[one][other]), PAIRS);
  const rows = differences.map(({ first: one, second: other }) => {
    const [here, there] = [first[one][other], second[one][other]];
    return [fixed(here), fixed(there), fixed(there - here), `${lines[one].label}  ${short(lines[one].text)}`, `${lines[other].label}  ${short(lines[other].text)}`];
  });
  const means = maps.map((map) => fixed(meanOf(map)));
  $('compare-done').textContent = [...said, `mean similarity of two lines ${means.join(' and ')}`].join(' · ');
  $('compare-result').replaceChildren(
    el('div', { class: 'pair' }, ...models.map((model, place) => heatMap(`${model}${models[0] === models[1] ? ` (${place + 1})` : ''}`, lines, maps[place]))),
    el('div', { class: 'card' }, table('Pairs that differ most', [`${models[0]}#`, `${models[1]}#`, 'Difference#', 'Line', 'Line'], rows)));
}

function meanOf(map) {
  let sum = 0;
  map.forEach((row, at) => row.forEach((value, place) => { sum += at === place ? 0 : value; }));
  return sum / (map.length * (map.length - 1));
}
