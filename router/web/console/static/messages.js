// Messages as a page shows them, and which it shows: what filters.py and shown.py do on the server.

const MAX_STEPS = 20;
const MAX_VISITED = 10000;
const MAX_DUMPED_BYTES = 4096;
const MAX_TREE_NODES = 300;
const MAX_TREE_DEPTH = 20;
const MAX_DEPTH = 50;
const STEP = /\.(\*|[^ \t.[\]="<>!~()]+)|\[(\*|[0-9]{1,9})\]|\[("(?:[^"\\\x00-\x1f]|\\.)*")\]/y;
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

const OPERATOR = /!=|<=|>=|[=<>~]/y;
const QUOTED = /"(?:[^"\\]|\\.)*"/y;
const WORD = /[^ \t()]+/y;
const NAME = /"(?:[^"\\]|\\.)*"|[^ \t()=<>!~"]+/y;
const KEY = /key(?=[:=<>~]|!=)/y;
const TERM = /\$[.[]|header:/y;

const at = (pattern, text, place) => {
  pattern.lastIndex = place;
  return pattern.exec(text);
};

function unquoted(expected) {
  try {
    const found = expected.startsWith('"') ? JSON.parse(expected) : null;
    return typeof found === "string" ? found : null;
  } catch {
    return null;
  }
}

// The steps behind a `$`, and where they end; null for what cannot be read.
function readSteps(text, start) {
  const steps = [];
  let place = start + 1;
  for (let found = at(STEP, text, place); found !== null; found = at(STEP, text, place)) {
    const [, name, index, quoted] = found;
    if (quoted !== undefined) steps.push({ name: unquoted(quoted) });
    else if (name === "*" || index === "*") steps.push({ each: true });
    else steps.push(index === undefined ? { name } : { index: Number(index) });
    if (steps.at(-1).name === null) return null;
    place = STEP.lastIndex;
  }
  return steps.length > MAX_STEPS || '.[]"'.includes(text[place] ?? " ") ? null : { steps, place };
}

// A JSON path as { steps, operator, expected }; null for one that cannot be read.
export function readPath(written) {
  const text = trimmed(written);
  const found = text.startsWith("$") ? readSteps(text, 0) : null;
  if (found === null) return null;
  const rest = trimmed(text.slice(found.place));
  const operator = at(OPERATOR, rest, 0)?.[0];
  if (rest !== "" && operator === undefined) return null;
  return { steps: found.steps, operator, expected: rest === "" ? null : trimmed(rest.slice(operator.length)) };
}

function members(value, { name, index, each }) {
  const list = Array.isArray(value);
  if (index !== undefined) return list && index < value.length ? [value[index]] : [];
  if (value === null || typeof value !== "object") return [];
  if (each) return Object.values(value);
  return !list && Object.hasOwn(value, name) ? [value[name]] : [];
}

function equals(value, expected) {
  if (typeof value === "string") return value === expected || value === unquoted(expected);
  if (typeof value === "number") return NUMBER.test(expected) && Number(expected) === value;
  return value === null || typeof value === "boolean" ? String(value) === expected : false;
}

const ordered = (one, operator, other) =>
  ({ "<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other })[operator];

// Whether a text is so; it is compared as a number where both are numbers.
function has(found, operator, written) {
  const expected = unquoted(written) ?? written;
  if (operator === "=" || operator === "!=") return (found === expected) === (operator === "=");
  if (operator === "~") return found.toLowerCase().includes(expected.toLowerCase());
  if (NUMBER.test(found) && NUMBER.test(expected)) return ordered(Number(found), operator, Number(expected));
  return ordered(found, operator, expected);
}

function is(value, operator, expected) {
  if (operator === "=" || operator === "!=") return equals(value, expected) === (operator === "=");
  if (typeof value === "number") return operator !== "~" && NUMBER.test(expected) && ordered(value, operator, Number(expected));
  if (typeof value !== "string") return false;
  const text = unquoted(expected) ?? expected;
  return operator === "~" ? value.toLowerCase().includes(text.toLowerCase()) : ordered(value, operator, text);
}

function hasPath(message, { steps, operator, expected }) {
  if (message.value_base64 !== undefined) return false;
  let found;
  try {
    found = [JSON.parse(message.value ?? "")];
  } catch {
    return false;
  }
  let visited = 0;
  for (const one of steps) {
    found = found.flatMap((value) => members(value, one));
    visited += found.length;
    if (visited > MAX_VISITED) return false;
  }
  return found.some((value) => expected === null || is(value, operator, expected));
}

function holding(text) {
  const expected = text.toLowerCase();
  return (message) => {
    const texts = [valueOf(message), keyOf(message) ?? ""];
    for (const [name, value] of Object.entries(message.properties)) texts.push(`${name}: ${value}`);
    return texts.some((one) => one.toLowerCase().includes(expected));
  };
}

// What the filter box asks for, as a function of a message: the language of filters.py. It throws
// for what cannot be read.
export function readExpression(text) {
  let place = 0;
  let depth = 0;
  const fail = (expected) => { throw new SyntaxError(`expected ${expected}`); };
  const blanks = () => { while (text[place] === " " || text[place] === "\t") place += 1; };
  const peek = () => {
    blanks();
    return at(WORD, text, place)?.[0].toLowerCase() ?? text[place] ?? "";
  };
  const takes = (word) => {
    if (peek() !== word) return false;
    place += word.length;
    blanks();
    return true;
  };
  const isEnd = () => ["", ")"].includes(peek());

  function compared(others) {
    const operator = at(OPERATOR, text, place)?.[0];
    place += (operator ?? others).length;
    blanks();
    const found = at(QUOTED, text, place) ?? at(WORD, text, place) ?? fail("a value");
    place += found[0].length;
    return [operator ?? "=", found[0]];
  }

  function path() {
    const found = readSteps(text, place) ?? fail("a path");
    ({ place } = found);
    blanks();
    if (at(OPERATOR, text, place) === null) return (message) => hasPath(message, { ...found, expected: null });
    const [operator, expected] = compared("");
    return (message) => hasPath(message, { ...found, operator, expected });
  }

  function header() {
    place += "header:".length;
    const [found] = at(NAME, text, place) ?? fail("a name");
    place += found.length;
    const name = unquoted(found) ?? found;
    const given = ({ properties }) => Object.hasOwn(properties, name);
    if (at(OPERATOR, text, place) === null) return given;
    const [operator, expected] = compared("");
    return (message) => given(message) && has(message.properties[name], operator, expected);
  }

  function phrase() {
    const start = place;
    let end = place;
    for (let found = at(WORD, text, place); found !== null; found = at(WORD, text, place)) {
      if (place > start && (["and", "or", "not"].includes(peek()) || [TERM, KEY, QUOTED].some((one) => at(one, text, place)))) break;
      end = place += found[0].length;
      blanks();
    }
    return text.slice(start, end);
  }

  function term() {
    if (isEnd() || ["and", "or", "not"].includes(peek())) fail("a text");
    if (/^\$([ \t.[=<>!~()]|$)/.test(text.slice(place))) return path();
    if (at(KEY, text, place)) {
      place += 3;
      const [operator, expected] = compared(":");
      return (message) => {
        const key = keyOf(message);
        return key === null ? operator === "!=" : has(key, operator, expected);
      };
    }
    if (text.startsWith("header:", place)) return header();
    const quoted = at(QUOTED, text, place)?.[0];
    if (quoted === undefined) return holding(phrase());
    place += quoted.length;
    return holding(unquoted(quoted) || quoted.slice(1, -1));
  }

  function unit() {
    depth += 1;
    if (depth > MAX_DEPTH) fail("fewer parentheses");
    let found;
    if (takes("not")) {
      const part = unit();
      found = (message) => !part(message);
    } else if (takes("(")) {
      found = either();
      if (!takes(")")) fail("a closing parenthesis");
    } else {
      found = term();
    }
    depth -= 1;
    return found;
  }

  function all() {
    const parts = [unit()];
    while (takes("and") || !(isEnd() || peek() === "or")) parts.push(unit());
    return (message) => parts.every((part) => part(message));
  }

  function either() {
    const parts = [all()];
    while (takes("or")) parts.push(all());
    return (message) => parts.some((part) => part(message));
  }

  const found = either();
  return place < text.length ? fail("nothing behind the last parenthesis") : found;
}

// What the fields of the form ask for; `unreadable` names a field that cannot be read.
export function readFilter({ filter = "", key = "", header = "", path = "", partition = "" }) {
  const found = { key, header, partition: trimmed(partition), expression: null, unreadable: "" };
  try {
    if (trimmed(filter) !== "") found.expression = readExpression(filter);
  } catch {
    found.unreadable = "filter";
  }
  found.path = trimmed(path) === "" ? null : readPath(path);
  if (found.path === null && trimmed(path) !== "") found.unreadable = "path";
  if (!/^[0-9]{0,9}$/.test(found.partition)) found.unreadable = "partition";
  found.any = Boolean(found.expression || key || header || found.partition || found.path);
  return found;
}

function hasHeader(properties, header) {
  const place = header.indexOf("=");
  const name = place < 0 ? header : header.slice(0, place);
  if (!Object.hasOwn(properties, name)) return false;
  return place < 0 || properties[name] === header.slice(place + 1);
}

export function matches(filter, message) {
  if (filter.partition && Number(filter.partition) !== Math.max(0, message.position.partition)) return false;
  if (filter.key && keyOf(message) !== filter.key) return false;
  if (filter.header && !hasHeader(message.properties, filter.header)) return false;
  if (filter.path !== null && !hasPath(message, filter.path)) return false;
  return filter.expression === null || filter.expression(message);
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
