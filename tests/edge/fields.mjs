// Print the fields of each record of the manifest that the client knows.
import { RECORDS, fieldsOf } from './node_modules/whiten/src/schema.js';

const fields = Object.keys(RECORDS).map((name) => [name, [...fieldsOf(name).keys()]]);
process.stdout.write(JSON.stringify(Object.fromEntries(fields)));
