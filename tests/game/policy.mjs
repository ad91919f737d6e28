// Runs an exported policy on the observations in a file: policy.mjs STATIC POLICY OBSERVATIONS ROWS
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [directory, file, observations, rows] = process.argv.slice(2);
const { Policy } = await import(pathToFileURL(`${directory}/policy.js`));

try {
  const policy = await Policy.read(new Uint8Array(readFileSync(file)));
  const numbers = new Float32Array(new Uint8Array(readFileSync(observations)).buffer);
  const outputs = Array.from({ length: Number(rows) }, (_, row) =>
    Array.from(policy.output(numbers.subarray(row * policy.size, (row + 1) * policy.size))),
  );
  console.log(JSON.stringify({ actions: Array.from(policy.act(numbers, Number(rows))), outputs }));
} catch (error) {
  console.log(JSON.stringify({ error: error.message }));
}
