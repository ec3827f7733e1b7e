// Print the tables that the client takes from Python.
import * as tables from './node_modules/whiten/src/tables.js';

process.stdout.write(JSON.stringify(tables));
