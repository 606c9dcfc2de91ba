// Messages as a page shows them, and which it shows: what filters.py and shown.py do on the server.

const MAX_STEPS = 20;
const MAX_VISITED = 10000;
const MAX_DUMPED_BYTES = 4096;
const MAX_TREE_NODES = 300;
const MAX_TREE_DEPTH = 20;
const STEP = /\.(\*|[^ \t.[\]="<>!]+)|\[(\*|[0-9]{1,9})\]|\[("(?:[^"\\\x00-\x1f]|\\.)*")\]/y;
const NUMBER = /^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$/;
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;

const trimmed = (text) => text.replace(/^[ \t]+|[ \t]+$/g, "");
const hexadecimal = (base64) =>
  Array.from(atob(base64), (c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");

export const keyOf = (message) =>
  message.key_base64 === undefined ? message.key : hexadecimal(message.key_base64);
export const valueOf = (message) =>
  message.value_base64 === undefined ? message.value ?? "" : hexadecimal(message.value_base64);

// The id of a message, as addresses have it.
export function idOf({ ledger, entry, partition, batch_index: index }) {
  return `${ledger}:${entry}:${partition}${index >= 0 ? `:${index}` : ""}`;
}

function step(found) {
  if (found[3] !== undefined) return { name: JSON.parse(found[3]) };
  if (found[1] === "*" || found[2] === "*") return { each: true };
  return found[2] === undefined ? { name: found[1] } : { index: Number(found[2]) };
}

// A JSON path as { steps, wanted }; null for one that cannot be read.
export function readPath(written) {
  const text = trimmed(written);
  if (!text.startsWith("$")) return null;
  const steps = [];
  let at = 1;
  for (;;) {
    STEP.lastIndex = at;
    const found = steps.length <= MAX_STEPS ? STEP.exec(text) : null;
    if (found === null) break;
    try {
      steps.push(step(found));
    } catch {
      return null;
    }
    at = STEP.lastIndex;
  }
  const rest = trimmed(text.slice(at));
  if (steps.length > MAX_STEPS || (rest !== "" && !rest.startsWith("="))) return null;
  return { steps, wanted: rest === "" ? null : trimmed(rest.slice(1)) };
}

function members(value, { name, index, each }) {
  const list = Array.isArray(value);
  if (index !== undefined) return list && index < value.length ? [value[index]] : [];
  if (value === null || typeof value !== "object") return [];
  if (each) return Object.values(value);
  return !list && Object.hasOwn(value, name) ? [value[name]] : [];
}

function unquoted(wanted) {
  try {
    return wanted.startsWith('"') ? JSON.parse(wanted) : null;
  } catch {
    return null;
  }
}

function equals(value, wanted) {
  if (typeof value === "string") return value === wanted || value === unquoted(wanted);
  if (typeof value === "number") return NUMBER.test(wanted) && Number(wanted) === value;
  return value === null || typeof value === "boolean" ? String(value) === wanted : false;
}

function hasPath(text, { steps, wanted }) {
  let found;
  try {
    found = [JSON.parse(text)];
  } catch {
    return false;
  }
  let visited = 0;
  for (const one of steps) {
    found = found.flatMap((value) => members(value, one));
    visited += found.length;
    if (visited > MAX_VISITED) return false;
  }
  return found.some((value) => wanted === null || equals(value, wanted));
}

// What the fields of the form ask for; `unreadable` names a field that cannot be read.
export function readFilter({ filter = "", key = "", header = "", path = "", partition = "" }) {
  const found = { text: filter.toLowerCase(), key, header, partition: trimmed(partition) };
  found.path = trimmed(path) === "" ? null : readPath(path);
  const number = found.partition === "" || /^[0-9]{1,9}$/.test(found.partition);
  found.unreadable = found.path === null && trimmed(path) !== "" ? "path" : number ? "" : "partition";
  found.any = Boolean(found.text || key || header || found.partition || found.path);
  return found;
}

function hasHeader(properties, header) {
  const at = header.indexOf("=");
  const name = at < 0 ? header : header.slice(0, at);
  if (!Object.hasOwn(properties, name)) return false;
  return at < 0 || properties[name] === header.slice(at + 1);
}

export function matches(wanted, message) {
  if (wanted.partition && Number(wanted.partition) !== Math.max(0, message.position.partition)) return false;
  if (wanted.key && keyOf(message) !== wanted.key) return false;
  if (wanted.header && !hasHeader(message.properties, wanted.header)) return false;
  if (wanted.text) {
    const texts = [valueOf(message), keyOf(message) ?? ""];
    for (const [name, value] of Object.entries(message.properties)) texts.push(`${name}: ${value}`);
    if (!texts.some((text) => text.toLowerCase().includes(wanted.text))) return false;
  }
  if (wanted.path === null) return true;
  return message.value_base64 === undefined && hasPath(message.value ?? "", wanted.path);
}

// Control characters that can be seen, and that change no direction of reading.
export function visible(text) {
  return text.replace(UNSEEN, (found) => {
    const code = found.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
  });
}

function bytesOf(message) {
  if (message.value_base64 === undefined) return new TextEncoder().encode(message.value ?? "");
  return Uint8Array.from(atob(message.value_base64), (c) => c.charCodeAt(0));
}

export function hexdump(message) {
  const bytes = bytesOf(message).subarray(0, MAX_DUMPED_BYTES);
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = Array.from(bytes.subarray(at, at + 16));
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const plain = part.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  |${plain}|`);
  }
  return lines.join("\n");
}

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b|\b(?:true|false|null)\b/g;

// A line of JSON in pieces of [kind, text]; the kind is that of a node of `tree`, or "" for none.
export function pieces(text) {
  const found = [];
  let at = 0;
  if (!/^\s*[{[]/.test(text)) return [["", text]];
  for (const { 0: token, 1: string, 2: colon, index } of text.matchAll(TOKEN)) {
    if (index > at) found.push(["", text.slice(at, index)]);
    if (string === undefined) found.push([/^[tfn]/.test(token) ? "word" : "number", token]);
    else found.push([colon === undefined ? "text" : "name", string]);
    if (colon !== undefined) found.push(["", colon]);
    at = index + token.length;
  }
  if (at < text.length) found.push(["", text.slice(at)]);
  return found;
}

class Digits {
  constructor(text) { this.text = text; }
}

// A JSON text as nodes, as shown.py has them; null for what is none.
export function tree(text) {
  let value;
  try {
    // Where the engine tells how a number is written, it is shown so.
    value = JSON.parse(text, (name, found, context) =>
      (typeof found === "number" ? new Digits(context?.source ?? String(found)) : found));
  } catch {
    return null;
  }
  let left = MAX_TREE_NODES;
  const node = (name, found, depth) => {
    const made = { name, kind: "word", text: "", children: [], more: 0 };
    if (typeof found === "string") return { ...made, kind: "text", text: JSON.stringify(found) };
    if (found instanceof Digits) return { ...made, kind: "number", text: found.text };
    if (found === null || typeof found !== "object") return { ...made, text: String(found) };
    const entries = Object.entries(found);
    const list = Array.isArray(found);
    made.kind = list ? "array" : "object";
    made.text = list ? `[${entries.length}]` : `{${entries.length}}`;
    for (const [member, one] of entries) {
      if (left <= 0 || depth >= MAX_TREE_DEPTH) break;
      left -= 1;
      made.children.push(node(member, one, depth + 1));
    }
    made.more = entries.length - made.children.length;
    return made;
  };
  return node("", value, 0);
}
