/**
 * The client of rekindle's session server: for browsers, and for Node 22 or newer. It has no dependencies.
 *
 *   import { Client, CONTINUING } from "http://127.0.0.1:7654/client.js";
 *
 *   const client = await Client.connect("ws://127.0.0.1:7654/session");
 *   let { actions } = await client.begin(observation);
 *   for (;;) {
 *     // move your character by actions[0], then
 *     ({ actions } = await client.step({ observations: observation, rewards: [reward], statuses: [CONTINUING] }));
 *   }
 *
 * A client numbers its requests, connects again when the connection is lost, and sends its newest request again: every
 * transition reaches the training exactly once, also if the server is killed and started again. docs/protocol.md
 * describes the messages.
 *
 * Arrays are typed arrays with one row for each stream, row after row; nested or flat lists of numbers are converted,
 * unless that would change a number.
 * Arrays of Dict and Tuple spaces are objects with one array for each part. float16 is a Float32Array, bool a
 * Uint8Array, int64 a BigInt64Array.
 */

/** Statuses of a step: the episode continues; the task ended; the episode was cut short, for example by a time limit. */
export const CONTINUING = 0;
export const TERMINATED = 1;
export const TRUNCATED = 2;

/** Versions of the protocol: the lowest and the highest. */
const VERSIONS = [1, 1];
const FIRST_WAIT = 50;
const LONGEST_WAIT = 1000;
const LASTING = 1000;
const MOST_DEPTH = 32;

/** After these errors, connecting again cannot help. */
const FINAL = new Set(["bad_message", "too_large", "version", "token", "spaces", "taken", "replaced", "sequence"]);

/** After these errors the server closes the connection, and the request is sent again in the next one. */
const PASSING = new Set(["rate", "full", "leaving", "internal"]);

/** A request that failed. `code` is a code of the protocol, or `behind`, `closed`, `stopped` or `unreachable`. */
export class SessionError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "SessionError";
    this.code = code;
  }
}

/** A connection to a session server, over all reconnections. */
export class Client {
  /** The newest `welcome`: spaces, formats, limits, the names of run and algorithm. */
  welcome = null;
  /** Open episodes when the connection was made, by stream: `{ length, reward, action }`. */
  streams = new Map();
  /** Why the training is over; null while it continues. */
  stop = null;
  /** `connecting`, `open`, `waiting` (before the next attempt to connect) or `closed`. */
  state = "connecting";
  /** How often the client reconnected. */
  reconnections = 0;
  /** Milliseconds from the newest request to its answer. */
  latency = 0;

  #address;
  #options;
  #socket = null;
  #welcomed = false;
  #secret;
  #last;
  #current = null;
  #waiting = [];
  #asked = new Map();
  #refs = 0;
  #attempts = 0;
  #openedAt = 0;
  #lostAt = performance.now();
  #timer = null;
  #failure = null;
  #opening;

  /**
   * Connect, and return a client when the server has welcomed it.
   *
   * Options:
   *   observationSpace, actionSpace: your spaces, as maps (docs/protocol.md); the first client may have to give them
   *   client: your name; without it, the server makes one up
   *   resume: the `ticket` of an earlier client, to continue as that client
   *   token: the token of the server
   *   mode: "train" (default), or "play" to use `act` and `stats` alone
   *   encoding: "msgpack" (default) or "json"
   *   timeout: milliseconds to wait for an answer before connecting again (30000)
   *   patience: milliseconds without a connection before requests fail (for ever)
   *   onState: a function that is called with each new state
   *   WebSocket: the class to use; without it, that of the browser or of Node
   */
  static async connect(address, options = {}) {
    const client = new Client(address, options);
    await client.#opening.promise;
    return client;
  }

  constructor(address, options) {
    this.#address = String(address);
    this.#options = { encoding: "msgpack", timeout: 30_000, patience: Infinity, mode: "train", ...options };
    this.#options.WebSocket ??= globalThis.WebSocket;
    if (this.#options.WebSocket === undefined) {
      throw new SessionError("unreachable", "there is no WebSocket here: use Node 22 or newer, or pass the option WebSocket");
    }
    if (!["msgpack", "json"].includes(this.#options.encoding)) {
      throw new RangeError(`encoding is ${this.#options.encoding}: use msgpack or json`);
    }
    this.name = this.#options.resume?.client ?? this.#options.client ?? null;
    this.#secret = this.#options.resume?.secret ?? null;
    this.#last = this.#options.resume?.last ?? 0;
    this.#opening = {};
    this.#opening.promise = new Promise((resolve, reject) => Object.assign(this.#opening, { resolve, reject }));
    this.#connect();
  }

  /** What another client needs to continue as this one. Keep it secret. */
  get ticket() {
    return { client: this.name, secret: this.#secret, last: this.#last };
  }

  /** Start an episode in each stream; resolves to `{ actions, tick, stop }`, with a row of actions for each stream. */
  begin(observations, streams = [0]) {
    return this.#request("begin", { streams, observations });
  }

  /**
   * Report the outcome of the last action of each stream; resolves as `begin` does.
   *
   * Takes `observations`, `rewards`, `statuses`; optionally `streams` (default: [0]), `actions` if others than the
   * last ones were executed, and `extras`: a map from a position in `streams` to a map of numbers.
   */
  step(outcome) {
    return this.#request("step", { streams: [0], ...outcome });
  }

  /** Truncate the open episode of each stream at its last transition. */
  abandon(streams = [0]) {
    return this.#request("abandon", { streams });
  }

  /** Truncate the open episode of each stream, and let the server forget the streams. */
  closeStreams(streams) {
    return this.#request("close", { streams });
  }

  /**
   * Several requests as one: `{ close, abandon, step, begin }`, each optional, in this order.
   *
   * `close` and `abandon` are lists of streams; `step` is what `step` takes, `begin` is `{ observations, streams }`.
   * The rows of `actions` are those of `step`, then those of `begin`.
   */
  batch(parts) {
    return this.#request("batch", parts);
  }

  /** Greedy actions for rows of observations, without learning. */
  async act(observations, rows = 1) {
    return (await this.#ask("act", { observations, rows })).actions;
  }

  /** How the training is going: `steps`, `episodes`, `updates`, `steps_per_second`, `learning`, ... */
  stats() {
    return this.#ask("stats", {});
  }

  /** Close the streams on the server, and the connection. */
  bye() {
    if (this.#welcomed) this.#socket.send(this.#encoded({ type: "bye" }));
    this.#end(new SessionError("closed", "the client has said bye"));
  }

  /** Close the connection. The streams stay for a while: a client with this one's `ticket` can continue. */
  close() {
    this.#end(new SessionError("closed", "the client is closed"));
  }

  // Requests

  #request(type, fields) {
    if (this.#options.mode === "play") {
      return Promise.reject(new SessionError("mode", `${type} needs the mode train, and this client only plays`));
    }
    return new Promise((resolve, reject) => {
      if (this.#failure !== null) reject(this.#failure);
      else if (this.stop !== null) reject(new SessionError("stopped", `the training is over: ${this.stop}`));
      else {
        const request = { type, fields, resolve, reject };
        this.#waiting.push(request);
        this.#next();
        // A request that waits is sent as it is now, also if the page uses its arrays again in the meantime.
        if (this.#waiting.includes(request)) request.fields = structuredClone(fields);
      }
    });
  }

  #ask(type, fields) {
    return new Promise((resolve, reject) => {
      if (this.#failure !== null) return reject(this.#failure);
      const asked = { type, fields, resolve, reject, ref: (this.#refs += 1) };
      this.#asked.set(asked.ref, asked);
      if (this.#welcomed) this.#sendAsked(asked);
      else asked.fields = structuredClone(fields);
    });
  }

  /** Send the next request, if the one before it was answered. */
  #next() {
    while (this.#welcomed && this.#current === null && this.#waiting.length > 0) {
      const request = this.#waiting.shift();
      request.seq = this.#last + 1;
      try {
        const message = { type: request.type, seq: request.seq, ...this.#onWire(request.type, request.fields) };
        request.frame = this.#encoded(message);
        this.#checkSize(request.frame);
      } catch (error) {
        request.reject(error);
        continue;
      }
      this.#current = request;
      this.#sendCurrent();
    }
  }

  #sendCurrent() {
    this.#current.sentAt = performance.now();
    this.#socket.send(this.#current.frame);
    this.#expect("an answer");
  }

  #sendAsked(asked) {
    try {
      if (asked.frame === undefined) {
        const fields = asked.type === "act" ? this.#actFields(asked.fields) : {};
        asked.frame = this.#encoded({ type: asked.type, ref: asked.ref, ...fields });
      }
      this.#checkSize(asked.frame);
      this.#socket.send(asked.frame);
      if (this.#timer === null) this.#expect("an answer");
    } catch (error) {
      this.#asked.delete(asked.ref);
      asked.reject(error);
    }
  }

  #checkSize(frame) {
    const most = this.welcome.limits.message;
    const size = typeof frame === "string" ? 3 * frame.length : frame.length;
    if (size > most && (typeof frame !== "string" || new TextEncoder().encode(frame).length > most)) {
      throw new RangeError(`the message is larger than the ${most} bytes that the server takes: send fewer streams`);
    }
  }

  #encoded(message) {
    return this.#options.encoding === "json" ? JSON.stringify(message) : encodeMessage(message);
  }

  #actFields({ observations, rows }) {
    return { observations: wireArray(observations, this.welcome.observation, rows, this.#options.encoding, "observations") };
  }

  /** The fields of a request, with arrays as they travel. */
  #onWire(type, fields) {
    const { encoding } = this.#options;
    const { observation, action } = this.welcome;
    const rewards = { "": { dtype: "float64", shape: [] } };
    const statuses = { "": { dtype: "uint8", shape: [] } };
    const list = (given) => {
      const { streams = [0], observations } = given;
      return { streams: wireStreams(streams), observations: wireArray(observations, observation, streams.length, encoding, "observations") };
    };
    const steps = (given) => {
      const sent = list(given);
      const rows = sent.streams.length;
      sent.rewards = wireArray(given.rewards, rewards, rows, encoding, "rewards");
      sent.statuses = wireArray(given.statuses, statuses, rows, encoding, "statuses");
      if (given.actions !== undefined) sent.actions = wireArray(given.actions, action, rows, encoding, "actions");
      if (given.extras !== undefined) sent.extras = wireExtras(given.extras);
      return sent;
    };
    if (type === "begin") return list(fields);
    if (type === "step") return steps(fields);
    if (type !== "batch") return { streams: wireStreams(fields.streams) };
    const sent = {};
    if (fields.close?.length) sent.close = wireStreams(fields.close);
    if (fields.abandon?.length) sent.abandon = wireStreams(fields.abandon);
    if (fields.step !== undefined) sent.step = steps(fields.step);
    if (fields.begin !== undefined) sent.begin = list(fields.begin);
    return sent;
  }

  // The connection

  #connect() {
    this.#become("connecting");
    const socket = new this.#options.WebSocket(this.#address);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    this.#expect("a connection");
    let isOpen = false;
    socket.onopen = () => {
      isOpen = true;
      if (socket === this.#socket) socket.send(this.#encoded(this.#hello()));
    };
    socket.onerror = (event) => {
      // If a connection cannot be made, Node 22 fires no `close` event.
      if (socket === this.#socket && !isOpen) this.#lost(`the connection failed: ${event.message ?? ""}`.replace(/: $/, ""));
    };
    socket.onmessage = (event) => {
      if (socket === this.#socket) this.#receive(event.data);
    };
    socket.onclose = (event) => {
      if (socket === this.#socket) this.#lost(`the connection was closed (${event.code}) ${event.reason}`.trim());
    };
  }

  #hello() {
    const { token, mode, observationSpace, actionSpace } = this.#options;
    const hello = { type: "hello", versions: VERSIONS, last: this.#last };
    if (this.name !== null) hello.client = this.name;
    if (this.#secret !== null) hello.secret = this.#secret;
    if (token !== undefined) hello.token = token;
    if (mode !== "train") hello.mode = mode;
    if (observationSpace !== undefined) hello.observation_space = observationSpace;
    if (actionSpace !== undefined) hello.action_space = actionSpace;
    return hello;
  }

  /** Connect again if nothing arrives in time. */
  #expect(what) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      const socket = this.#socket;
      this.#socket = null;
      socket.close();
      this.#lost(`there was no sign of ${what} for ${this.#options.timeout} ms`);
    }, this.#options.timeout);
  }

  /** Expect nothing more, or the answers that are still to come, after something has arrived. */
  #arrived() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#current !== null || this.#asked.size > 0) this.#expect("an answer");
  }

  #lost(reason) {
    clearTimeout(this.#timer);
    this.#socket = null;
    const now = performance.now();
    if (this.#welcomed) {
      this.#lostAt = now;
      if (now - this.#openedAt > LASTING) this.#attempts = 0;
    }
    this.#welcomed = false;
    if (this.#failure !== null) return;
    if (this.stop !== null) {
      this.#end(new SessionError("stopped", `the training is over: ${this.stop}`));
    } else if (now - this.#lostAt > this.#options.patience) {
      this.#end(new SessionError("unreachable", `there is no server at ${this.#address}: ${reason}`));
    } else {
      this.#become("waiting");
      // The first attempt is made at once; then each waits for a random part of twice as long, up to a second.
      const wait = this.#attempts === 0 ? 0 : Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** (this.#attempts - 1));
      this.#attempts += 1;
      this.#timer = setTimeout(() => this.#connect(), wait * Math.random());
    }
  }

  #receive(data) {
    let message;
    try {
      message = typeof data === "string" ? JSON.parse(data) : decodeMessage(new Uint8Array(data));
    } catch (error) {
      return this.#end(new SessionError("bad_message", `the server sent what is no message: ${error.message}`));
    }
    if (message.type === "welcome") this.#receiveWelcome(message);
    else if (message.type === "actions" || message.type === "stats") this.#receiveAnswer(message);
    else if (message.type === "error") this.#receiveError(message);
  }

  #receiveWelcome(welcome) {
    const isAgain = this.welcome !== null;
    clearTimeout(this.#timer);
    this.#timer = null;
    this.welcome = welcome;
    this.name = welcome.client;
    this.#secret = welcome.secret ?? this.#secret; // null in mode play: the secret for training stays
    this.stop = welcome.stop ?? null;
    this.#openedAt = performance.now();
    this.#welcomed = true;
    if (isAgain) this.reconnections += 1;
    const { encoding } = this.#options;
    this.streams = new Map(
      welcome.streams.map(({ stream, length, reward, action }) => [
        stream,
        { length, reward, action: readArray(action, welcome.action, encoding) },
      ]),
    );
    if (welcome.is_behind) {
      this.#forgetRequests(new SessionError("behind", "the server has lost requests: begin new episodes"));
    }
    if (this.#current === null) this.#last = welcome.last;
    this.#become("open");
    this.#opening.resolve();
    if (this.#current !== null) this.#sendCurrent();
    for (const asked of [...this.#asked.values()]) this.#sendAsked(asked);
    this.#next();
  }

  #receiveAnswer(message) {
    const { encoding } = this.#options;
    if (message.actions !== undefined) message.actions = readArray(message.actions, this.welcome.action, encoding);
    if (message.ref !== undefined && message.ref !== null) {
      this.#takeAsked(message.ref)?.resolve(message);
      return;
    }
    const request = this.#current;
    if (request === null || message.seq !== request.seq) return; // a duplicate
    this.latency = performance.now() - request.sentAt;
    this.#last = request.seq;
    this.#current = null;
    this.#arrived();
    this.stop = message.stop ?? null;
    request.resolve({ actions: message.actions ?? null, seq: message.seq, tick: message.tick, stop: this.stop });
    this.#next();
  }

  /** What was asked with this `ref`, and is answered now. Only the answer to the oldest one ends its time. */
  #takeAsked(ref) {
    const asked = this.#asked.get(ref);
    const isOldest = this.#asked.keys().next().value === ref;
    this.#asked.delete(ref);
    if (this.#current === null && isOldest) this.#arrived(); // otherwise the time of the current request goes on
    return asked;
  }

  #receiveError({ code, message, seq, ref, stop }) {
    const error = new SessionError(code, message);
    this.stop = stop ?? this.stop; // the connection is closed next
    if (code === "gone") {
      // The client starts anew: what it waited for belongs to streams that are no more.
      this.#secret = null;
      this.#last = 0;
      this.#forgetRequests(error);
    } else if (FINAL.has(code)) {
      this.#end(error);
    } else if (ref !== undefined && ref !== null) {
      this.#takeAsked(ref)?.reject(error);
    } else if (this.#current !== null && seq === this.#current.seq && !PASSING.has(code)) {
      const request = this.#current;
      this.#current = null;
      this.#arrived();
      request.reject(error);
      this.#next();
    }
  }

  #forgetRequests(error) {
    const requests = this.#current === null ? this.#waiting : [this.#current, ...this.#waiting];
    this.#current = null;
    this.#waiting = [];
    for (const request of requests) request.reject(error);
  }

  #end(error) {
    if (this.#failure !== null) return;
    this.#failure = error;
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    this.#welcomed = false;
    socket?.close(1000);
    this.#forgetRequests(error);
    for (const asked of this.#asked.values()) asked.reject(error);
    this.#asked.clear();
    this.#opening.reject(error);
    this.#opening.promise.catch(() => {}); // if it had resolved before, nobody waits for it
    this.#become("closed");
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    queueMicrotask(() => this.#options.onState?.(state)); // what it throws is not the client's failure
  }
}

// Streams, extras and arrays. The server ends a connection in which they are wrong, and with it the client: so check first.

function wireStreams(streams) {
  return Array.from(streams, (stream) => {
    const isRight = typeof stream === "string" ? stream !== "" : Number.isInteger(stream) && stream >= 0 && stream < 2 ** 31;
    if (!isRight) throw new RangeError(`a stream is ${stream}, but streams are integers from 0, or texts`);
    return stream;
  });
}

function wireExtras(extras) {
  const number = ([name, value]) => {
    if (typeof value !== "boolean" && !Number.isFinite(value)) throw new TypeError(`the extra ${name} is ${value}, not a number`);
    return [name, Number(value)];
  };
  const rows = Object.entries(extras).map(([row, numbers]) => [row, Object.fromEntries(Object.entries(numbers).map(number))]);
  return Object.fromEntries(rows);
}

const TYPES = {
  float32: Float32Array,
  float64: Float64Array,
  uint8: Uint8Array,
  int8: Int8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
  float16: Float32Array,
};

/** An array as it travels: the bytes of its rows in msgpack, nested lists in JSON. */
export function wireArray(given, format, rows, encoding, what) {
  if (!("" in format)) {
    if (given === null || typeof given !== "object") throw new TypeError(`${what} must be an object with one array for each part`);
    const names = Object.keys(format);
    const parts = names.map((name) => [name, wirePart(given[name], format[name], rows, encoding, `${what}.${name}`)]);
    return Object.fromEntries(parts);
  }
  return wirePart(given, format[""], rows, encoding, what);
}

function wirePart(given, { dtype, shape }, rows, encoding, what) {
  const typed = typedArray(given, dtype, what);
  const size = shape.reduce((product, side) => product * side, 1);
  if (typed.length !== rows * size) {
    const row = shape.length === 0 ? "one number" : `${shape.join(" x ")} numbers`;
    throw new RangeError(`${what} has ${typed.length} numbers, but ${rows} rows of ${row} are expected`);
  }
  if (encoding === "json") return nested(typed, [rows, ...shape]);
  if (dtype === "float16") return new Uint8Array(Uint16Array.from(typed, toHalf).buffer);
  return new Uint8Array(typed.buffer, typed.byteOffset, typed.byteLength);
}

function typedArray(given, dtype, what) {
  const Type = TYPES[dtype];
  if (given instanceof Type) return given;
  if (typeof given === "number") given = [given];
  if (ArrayBuffer.isView(given)) given = Array.from(given);
  if (!Array.isArray(given)) throw new TypeError(`${what} must be an array`);
  const flat = given.flat(Infinity);
  if (dtype === "bool") return Type.from(flat, Boolean);
  const typed = dtype.endsWith("int64") ? Type.from(flat, BigInt) : Type.from(flat);
  // A typed array of integers rounds and wraps: 0.5 becomes 0, and 300 becomes 44 in a Uint8Array. Each makes 0 of null.
  const isKept = dtype.startsWith("float") ? () => true : (number, index) => Number(number) === Number(typed[index]);
  const wrong = flat.findIndex((number, index) => number === null || !isKept(number, index));
  if (wrong >= 0) throw new RangeError(`${what} has ${flat[wrong]}, which is not ${dtype}`);
  return typed;
}

function nested(typed, [length, ...rest]) {
  if (rest.length === 0) return Array.from(typed, Number);
  const size = length === 0 ? 0 : typed.length / length;
  return Array.from({ length }, (_, index) => nested(typed.subarray(index * size, (index + 1) * size), rest));
}

/** An array that has arrived. */
export function readArray(value, format, encoding) {
  if ("" in format) return readPart(value, format[""], encoding);
  return Object.fromEntries(Object.keys(format).map((name) => [name, readPart(value[name], format[name], encoding)]));
}

function readPart(value, { dtype }, encoding) {
  if (encoding === "json") return typedArray(value, dtype, "an array");
  // A copy, because a typed array must begin at a multiple of the size of its elements.
  const { buffer } = value.slice();
  return dtype === "float16" ? Float32Array.from(new Uint16Array(buffer), fromHalf) : new TYPES[dtype](buffer);
}

function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function toHalf(number) {
  const sign = number < 0 || Object.is(number, -0) ? 0x8000 : 0;
  const size = Math.abs(number);
  if (Number.isNaN(number)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | toEven(size * 2 ** 24);
  const exponent = Math.min(15, Math.floor(Math.log2(size)));
  // Rounding up may carry into the exponent, which is then right.
  return sign + ((exponent + 14) << 10) + toEven((size / 2 ** exponent) * 1024);
}

function toEven(number) {
  const rounded = Math.round(number);
  return rounded - number === 0.5 && rounded % 2 === 1 ? rounded - 1 : rounded;
}

// msgpack

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });

/** A message in msgpack. */
export function encodeMessage(message) {
  return new Writer().document(message);
}

/** Bytes of a buffer in which most messages fit, learned from those before. */
let usualSize = 512;

/** The bytes of short texts: every message has the same keys, and encoding them again would leave garbage. */
const texts = new Map();

function encodedText(text) {
  if (text.length > 16) return encoder.encode(text);
  let bytes = texts.get(text);
  if (bytes === undefined) {
    bytes = encoder.encode(text);
    if (texts.size < 256) texts.set(text, bytes);
  }
  return bytes;
}

class Writer {
  #bytes = new Uint8Array(usualSize);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  document(value) {
    this.#write(value);
    if (this.#bytes.length > usualSize) usualSize = Math.min(this.#bytes.length, 2 ** 14);
    return this.#bytes.subarray(0, this.#length);
  }

  #room(size) {
    const start = this.#length;
    this.#length += size;
    if (this.#length > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(this.#length, 2 * this.#bytes.length));
      larger.set(this.#bytes);
      this.#bytes = larger;
      this.#view = new DataView(larger.buffer);
    }
    return start;
  }

  #byte(value) {
    const start = this.#room(1); // this may replace #bytes
    this.#bytes[start] = value;
  }

  /** A tag, and a number after it in 1, 2 or 4 bytes: the tags for these lengths follow each other. */
  #head(tag, number) {
    if (number < 0x100) {
      const start = this.#room(2);
      this.#view.setUint8(start, tag);
      this.#view.setUint8(start + 1, number);
    } else if (number < 0x10000) {
      const start = this.#room(3);
      this.#view.setUint8(start, tag + 1);
      this.#view.setUint16(start + 1, number);
    } else {
      const start = this.#room(5);
      this.#view.setUint8(start, tag + 2);
      this.#view.setUint32(start + 1, number);
    }
  }

  #data(bytes) {
    const start = this.#room(bytes.length);
    this.#bytes.set(bytes, start);
  }

  #number(value) {
    if (Number.isInteger(value) && value >= 0 && value < 2 ** 53 && !Object.is(value, -0)) {
      if (value < 0x80) this.#byte(value);
      else if (value < 2 ** 32) this.#head(0xcc, value);
      else {
        const start = this.#room(9);
        this.#view.setUint8(start, 0xcf);
        this.#view.setBigUint64(start + 1, BigInt(value));
      }
    } else {
      const start = this.#room(9);
      this.#view.setUint8(start, 0xcb);
      this.#view.setFloat64(start + 1, value);
    }
  }

  /** The head of a list or a map; there is no form with a length of one byte. */
  #sized(least, tag, length) {
    if (length < 16) return this.#byte(least | length);
    const isWide = length >= 0x10000;
    const start = this.#room(isWide ? 5 : 3);
    this.#view.setUint8(start, isWide ? tag + 1 : tag);
    if (isWide) this.#view.setUint32(start + 1, length);
    else this.#view.setUint16(start + 1, length);
  }

  #write(value) {
    if (value === null || value === undefined) this.#byte(0xc0);
    else if (typeof value === "boolean") this.#byte(value ? 0xc3 : 0xc2);
    else if (typeof value === "number") this.#number(value);
    else if (typeof value === "string") {
      const bytes = encodedText(value);
      if (bytes.length < 32) this.#byte(0xa0 | bytes.length);
      else this.#head(0xd9, bytes.length);
      this.#data(bytes);
    } else if (value instanceof Uint8Array) {
      this.#head(0xc4, value.length);
      this.#data(value);
    } else if (Array.isArray(value)) {
      this.#sized(0x90, 0xdc, value.length);
      for (const item of value) this.#write(item);
    } else if (typeof value === "object") {
      const keys = Object.keys(value);
      this.#sized(0x80, 0xde, keys.length);
      for (const key of keys) {
        this.#write(key);
        this.#write(value[key]);
      }
    } else throw new TypeError(`a ${typeof value} cannot be sent`);
  }
}

/**
 * A message from msgpack.
 *
 * `readExtension(type, bytes, position)` reads values of extension types; without it they are refused.
 */
export function decodeMessage(bytes, readExtension = null) {
  const reader = new Reader(bytes, readExtension);
  const value = reader.value(0);
  if (reader.position !== bytes.length) throw new RangeError("there are bytes after the end of the message");
  const isMap = value !== null && typeof value === "object" && !Array.isArray(value) && !ArrayBuffer.isView(value);
  if (!isMap) throw new TypeError("a message is a map");
  return value;
}

class Reader {
  position = 0;
  #bytes;
  #view;
  #readExtension;

  constructor(bytes, readExtension) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#readExtension = readExtension;
  }

  /** Numbers, after their tags, and lengths. */
  #number(method, size) {
    const number = this.#view[method](this.position);
    this.position += size;
    return number;
  }

  #wide(method) {
    const number = Number(this.#number(method, 8));
    if (!Number.isSafeInteger(number)) throw new RangeError("an integer has more than 53 bits");
    return number;
  }

  #length(step) {
    return [() => this.#number("getUint8", 1), () => this.#number("getUint16", 2), () => this.#number("getUint32", 4)][step]();
  }

  #take(length) {
    if (length > this.#bytes.length - this.position) throw new RangeError("the message ends too soon");
    this.position += length;
    return this.#bytes.subarray(this.position - length, this.position);
  }

  #text(length) {
    return decoder.decode(this.#take(length));
  }

  #list(length, depth) {
    const list = [];
    for (let index = 0; index < length; index += 1) list.push(this.value(depth + 1));
    return list;
  }

  #map(length, depth) {
    const entries = [];
    for (let index = 0; index < length; index += 1) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new TypeError("a key is no text");
      entries.push([key, this.value(depth + 1)]);
    }
    return Object.fromEntries(entries);
  }

  #extension(length) {
    const type = this.#number("getInt8", 1);
    const start = this.position;
    const bytes = this.#take(length);
    if (this.#readExtension === null) throw new TypeError(`extension type ${type} is unknown`);
    return this.#readExtension(type, bytes, start);
  }

  value(depth) {
    if (depth > MOST_DEPTH) throw new RangeError("maps and lists are nested too deeply");
    const tag = this.#number("getUint8", 1);
    if (tag < 0x80) return tag;
    if (tag < 0x90) return this.#map(tag & 0x0f, depth);
    if (tag < 0xa0) return this.#list(tag & 0x0f, depth);
    if (tag < 0xc0) return this.#text(tag & 0x1f);
    if (tag >= 0xe0) return tag - 0x100;
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.#take(this.#length(tag - 0xc4));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return this.#extension(this.#length(tag - 0xc7));
      case 0xca:
        return this.#number("getFloat32", 4);
      case 0xcb:
        return this.#number("getFloat64", 8);
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.#length(tag - 0xcc);
      case 0xcf:
        return this.#wide("getBigUint64");
      case 0xd0:
        return this.#number("getInt8", 1);
      case 0xd1:
        return this.#number("getInt16", 2);
      case 0xd2:
        return this.#number("getInt32", 4);
      case 0xd3:
        return this.#wide("getBigInt64");
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#text(this.#length(tag - 0xd9));
      case 0xdc:
      case 0xdd:
        return this.#list(this.#length(tag - 0xdc + 1), depth);
      case 0xde:
      case 0xdf:
        return this.#map(this.#length(tag - 0xde + 1), depth);
      default:
        throw new TypeError(`0x${tag.toString(16)} is no value of a message`);
    }
  }
}
