// Open bundles, and print how many sessions were created and released: stdin [bundle, ...].
import { readFileSync } from 'node:fs';
import ort from 'onnxruntime-node';
import { open } from 'whiten';

const count = { created: 0, released: 0, errors: [] };
const InferenceSession = {
  async create(...given) {
    const session = await ort.InferenceSession.create(...given);
    count.created += 1;
    return {
      run: (...feeds) => session.run(...feeds),
      release: () => {
        count.released += 1;
        return session.release();
      },
    };
  },
};
for (const bundle of JSON.parse(readFileSync(0, 'utf8'))) {
  try {
    await open(bundle, { ort: { Tensor: ort.Tensor, InferenceSession } });
  } catch (error) {
    count.errors.push(error.name);
  }
}
process.stdout.write(JSON.stringify(count));
