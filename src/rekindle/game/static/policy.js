/**
 * Runs a policy that `rekindle export` wrote (policy.mpk), in the browser or in Node, without a server.
 *
 * It can run networks of dense layers, with discrete actions: those of DQN, IQN's relatives and PPO on a vector of numbers.
 */

import { decodeMessage } from "./client.js";

const MAGIC = [0x89, 0x52, 0x4b, 0x4e, 0x44, 0x4c, 0x0d, 0x0a];
const VERSION = 2;
const HEADER = 52;
const ARRAYS = {
  1: Uint8Array, 2: Int8Array, 3: Int16Array, 4: Int32Array, 5: BigInt64Array, 6: Uint8Array, 7: Uint16Array,
  8: Uint32Array, 9: BigUint64Array, 11: Float32Array, 12: Float64Array,
};

/** The tree in the bytes of a .mpk file. Checks the checksum where the browser can (on https and localhost). */
export async function readTree(bytes) {
  if (bytes.length < HEADER || MAGIC.some((byte, index) => bytes[index] !== byte)) throw new Error("this is no file of rekindle");
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  if (view.getUint32(8, true) !== VERSION) throw new Error(`the version of the file is ${view.getUint32(8, true)}, not ${VERSION}`);
  const payload = bytes.subarray(HEADER);
  if (Number(view.getBigUint64(12, true)) !== payload.length) throw new Error("the file is not complete");
  if (globalThis.crypto?.subtle !== undefined) {
    const checked = new Uint8Array(20 + payload.length);
    checked.set(bytes.subarray(0, 20));
    checked.set(payload, 20);
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", checked));
    if (digest.some((byte, index) => byte !== bytes[20 + index])) throw new Error("the file is damaged");
  }
  return decodeMessage(payload, readArray);
}

/** An array: a code of its dtype, its number of axes, padding, the length of each axis, and its elements. */
function readArray(type, bytes) {
  const Type = ARRAYS[bytes[0]];
  if (type !== 1 || Type === undefined) throw new Error(`an array of an unknown kind (${type}, ${bytes[0]})`);
  const axes = bytes[1];
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const shape = Array.from({ length: axes }, (_, axis) => Number(view.getBigUint64(3 + 8 * axis, true)));
  const start = 3 + 8 * axes + bytes[2];
  const values = new Type(bytes.slice(start).buffer);
  if (values.length !== shape.reduce((product, side) => product * side, 1)) throw new Error("an array has the wrong size");
  return { shape, values };
}

export class Policy {
  static async read(bytes) {
    const tree = await readTree(bytes);
    if (tree.kind !== "policy") throw new Error("this is no exported policy");
    return new Policy(tree.policy);
  }

  constructor({ algorithm, encoding, layers, head, normaliser }) {
    const { parts } = encoding;
    const isVector = parts.length === 1 && parts[0].kind === "box" && !parts[0].is_bytes && !encoding.is_dict;
    if (!isVector) throw new Error("only observations that are one vector of numbers can be used here");
    if (!["greedy", "softmax", "categorical"].includes(head.kind) || head.counts.length !== 1) {
      throw new Error(`actions of the kind ${head.kind} cannot be chosen here`);
    }
    this.algorithm = algorithm;
    this.size = parts[0].shape.reduce((product, side) => product * side, 1);
    this.actions = head.counts[0];
    this.#start = head.starts[0];
    this.#normaliser = normaliser ?? null;
    this.#run = compiled(layers);
  }

  #start;
  #normaliser;
  #run;

  /** The number of each action's value, or its logit, for one observation. */
  output(observation) {
    return this.#run(this.#normalised(Float32Array.from(observation)));
  }

  /** The best action for each row of observations. */
  act(observations, rows = 1) {
    const actions = new Int32Array(rows);
    for (let row = 0; row < rows; row += 1) {
      const values = this.output(observations.subarray(row * this.size, (row + 1) * this.size));
      let best = 0;
      for (let action = 1; action < values.length; action += 1) if (values[action] > values[best]) best = action;
      actions[row] = best + this.#start;
    }
    return actions;
  }

  #normalised(values) {
    if (this.#normaliser === null) return values;
    const { mean, variance, clip } = this.#normaliser;
    return values.map((value, index) => {
      const scaled = (value - mean.values[index]) / Math.sqrt(variance.values[index] + 1e-8);
      return Math.max(-clip, Math.min(clip, scaled));
    });
  }
}

/** A function that runs layers one after the other. */
function compiled(layers) {
  const steps = layers.map(step);
  return (values) => steps.reduce((given, run) => run(given), values);
}

function step(layer) {
  switch (layer.kind) {
    case "dense":
    case "noisy_dense": // greedy: without its noise
      return dense(layer.arrays.weight, layer.arrays.bias);
    case "activation":
      return layer.name === "relu" ? (values) => values.map((value) => (value > 0 ? value : 0)) : (values) => values.map(Math.tanh);
    case "flatten":
      return (values) => values;
    case "dueling":
      return dueling(compiled(layer.value), compiled(layer.advantage), layer.atoms);
    case "mean":
      return (values) => grouped(values, layer.atoms, (atoms) => atoms.reduce((sum, atom) => sum + atom, 0) / atoms.length);
    case "expectation":
      return (values) => grouped(values, layer.atoms, (logits) => expectation(logits, layer.arrays.support.values));
    case "layer_norm":
      return (values) => layerNorm(values, layer.arrays.weight.values, layer.arrays.bias.values);
    default:
      throw new Error(`a layer of the kind ${layer.kind} cannot be run here`);
  }
}

function dense({ shape: [inputs, outputs], values: weight }, { values: bias }) {
  return (values) => {
    const sums = Float32Array.from(bias);
    for (let input = 0; input < inputs; input += 1) {
      const value = values[input];
      if (value === 0) continue;
      const start = input * outputs;
      for (let output = 0; output < outputs; output += 1) sums[output] += value * weight[start + output];
    }
    return sums;
  };
}

function dueling(value, advantage, atoms) {
  return (values) => {
    const advantages = advantage(values);
    const base = value(values);
    const actions = advantages.length / atoms;
    const means = new Float32Array(atoms);
    for (let index = 0; index < advantages.length; index += 1) means[index % atoms] += advantages[index] / actions;
    return advantages.map((number, index) => number - means[index % atoms] + base[index % atoms]);
  };
}

function grouped(values, size, reduce) {
  return Float32Array.from({ length: values.length / size }, (_, index) => reduce(values.subarray(index * size, (index + 1) * size)));
}

function expectation(logits, support) {
  const most = Math.max(...logits);
  const weights = logits.map((logit) => Math.exp(logit - most));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.reduce((total, weight, index) => total + weight * support[index], 0) / sum;
}

function layerNorm(values, weight, bias) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
  return values.map((value, index) => ((value - mean) / Math.sqrt(variance + 1e-5)) * weight[index] + bias[index]);
}
