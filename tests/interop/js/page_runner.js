// Runs programs of pages one after the other: a line of input is the name of a module, and a line of output is what it printed.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { format } from "node:util";

const answers = process.stdout;
let printed = "";
console.log = (...values) => {
  printed += `${format(...values)}\n`;
};

for await (const file of createInterface({ input: process.stdin })) {
  printed = "";
  let error = null;
  try {
    await import(pathToFileURL(file));
  } catch (problem) {
    error = `${problem.stack}`;
  }
  answers.write(`${JSON.stringify({ printed, error })}\n`);
}
process.exit(0);
