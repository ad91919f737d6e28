// Reads the test vectors of the protocol with rekindle.js: vectors.mjs CLIENT VECTORS
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [client, vectors] = process.argv.slice(2);
const { decodeMessage, encodeMessage, readArray, wireArray } = await import(pathToFileURL(client));

const one = (dtype, shape = []) => ({ "": { dtype, shape } });
const simple = { observations: one("float32", [2]), actions: one("int32"), action: one("int32"), rewards: one("float64"), statuses: one("uint8") };
const composite = {
  observations: { eye: { dtype: "uint8", shape: [2, 2] }, speed: { dtype: "float32", shape: [1] } },
  actions: { move: { dtype: "int32", shape: [] }, turn: { dtype: "float32", shape: [1] } },
};

/** Replaces each array in a message. */
function withArrays(message, formats, replace) {
  if (Array.isArray(message)) return message.map((item) => withArrays(item, formats, replace));
  if (message === null || typeof message !== "object" || message instanceof Uint8Array) return message;
  return Object.fromEntries(
    Object.entries(message).map(([name, value]) => {
      if (!Object.hasOwn(formats, name) || message.dtype !== undefined || value?.[""] !== undefined) {
        return [name, withArrays(value, formats, replace)];
      }
      return [name, replace(value, formats[name])];
    }),
  );
}

const rowsOf = (value) => (Array.isArray(value) ? value.length : Object.values(value)[0].length);

let count = 0;
for (const { name, json, msgpack } of JSON.parse(readFileSync(vectors, "utf8"))) {
  const formats = name.startsWith("composite") ? composite : simple;
  const raw = decodeMessage(new Uint8Array(Buffer.from(msgpack, "hex")));
  const binary = withArrays(raw, formats, (value, format) => readArray(value, format, "msgpack"));
  const text = withArrays(json, formats, (value, format) => readArray(value, format, "json"));
  assert.deepEqual(binary, text, name);

  const sent = withArrays(json, formats, (value, format) => wireArray(value, format, rowsOf(value), "msgpack", "array"));
  assert.deepEqual(decodeMessage(encodeMessage(sent)), raw, name);
  const written = withArrays(json, formats, (value, format) => wireArray(value, format, rowsOf(value), "json", "array"));
  assert.deepEqual(written, json, name);
  count += 1;
}

// What the vectors do not have: lengths and numbers of every size, and every dtype.
const odd = {
  long: "ü".repeat(300), longer: "x".repeat(70_000), list: Array.from({ length: 70_000 }, (_, index) => index), some: Array(20).fill(null),
  numbers: [0, 127, 128, 255, 256, 65_535, 65_536, 2 ** 32 - 1, 2 ** 32, 2 ** 53 - 1, -1, -0.5, 1e300], bytes: new Uint8Array(70_000),
  wide: Object.fromEntries(Array.from({ length: 20 }, (_, index) => [`key ${index}`, true])), __proto__: null,
};
assert.deepEqual(decodeMessage(encodeMessage(odd)), { ...odd });
const numbers = [0, 1, 2, 3, 100, 1];
for (const dtype of ["float32", "float64", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16"]) {
  const format = one(dtype, [2]);
  for (const encoding of ["msgpack", "json"]) {
    const read = readArray(wireArray(numbers, format, 3, encoding, "array"), format, encoding);
    assert.deepEqual(Array.from(read, Number), numbers, `${dtype} in ${encoding}`);
  }
}
const halves = [0.1, -2.5, 65_504, 65_520, 2 ** -24, 2 ** -25, 1 / 3, -0, 1e-5, 0.99999, 2047.7];
assert.deepEqual(
  Array.from(readArray(wireArray(halves, one("float16"), halves.length, "msgpack", "array"), one("float16"), "msgpack")),
  [0.0999755859375, -2.5, 65_504, Infinity, 2 ** -24, 0, 0.333251953125, -0, 1.0013580322265625e-5, 1, 2048],
);
assert.throws(() => wireArray([1, 2, 3], one("float32", [2]), 1, "msgpack", "observations"), /observations has 3 numbers/);
for (const bad of [0.5, 256, -1, NaN, undefined, null]) {
  assert.throws(() => wireArray([bad], one("uint8"), 1, "msgpack", "observations"), /observations has .* is not uint8/);
}
assert.throws(() => wireArray([1, null], one("float32", [2]), 1, "json", "observations"), /has null, which is not float32/);
for (const bad of ["", "c1", "81a161", "81a161c403ff", "8101c0", "c400", "80c0", "81a161d4017f", "81".padStart(2) + "a161".repeat(1) + "91".repeat(40) + "c0"]) {
  assert.throws(() => decodeMessage(new Uint8Array(Buffer.from(bad, "hex"))), undefined, bad);
}
console.log(count);
