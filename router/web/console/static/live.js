// The live tail of a topic: every message is counted, the newest ones are in the page.
import { hexdump, idOf, keyOf, matches, readFilter, tree, valueOf, visible } from "./messages.js";

const MOST_IN_PAGE = 500;
const MOST_CHARACTERS = 20000;
const FIELDS = ["filter", "key", "header", "path", "partition"];

const log = document.getElementById("log");
const counter = document.getElementById("counter");
const state = document.getElementById("state");
const pause = document.getElementById("pause");
const form = document.getElementById("selection");
const view = form.elements.view;

let received = 0;
let paused = false;
let scheduled = false;
let wanted = read();
let waiting = []; // messages that are not in the page yet, at most MOST_IN_PAGE
const shown = new WeakMap(); // the message of an article

function read() {
  return readFilter(Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value])));
}

function add(parent, name, text, kind) {
  const part = document.createElement(name);
  part.textContent = visible(text);
  if (kind) part.className = kind;
  parent.append(part);
  return part;
}

function branch(node) {
  const item = document.createElement("li");
  const name = node.name === "" ? "" : `${node.name}: `;
  if (node.children.length === 0) {
    add(item, "span", name, "name");
    add(item, "span", node.text, node.kind);
    return item;
  }
  const details = document.createElement("details");
  details.open = true;
  const summary = add(details, "summary", "");
  add(summary, "span", name, "name");
  add(summary, "span", node.text, "quiet");
  const list = document.createElement("ul");
  list.append(...node.children.map(branch));
  if (node.more > 0) add(list, "li", `${node.more} more`, "quiet");
  details.append(list);
  item.append(details);
  return item;
}

function body(found, message) {
  if (message.value === null) {
    add(found, "p", "No value", "quiet");
    return;
  }
  const root = view.value === "tree" && message.value_base64 === undefined ? tree(message.value ?? "") : null;
  if (root !== null) {
    const list = document.createElement("ul");
    list.className = "tree";
    list.append(branch(root));
    found.append(list);
    return;
  }
  const hex = view.value === "hex";
  const value = hex ? hexdump(message) : valueOf(message);
  add(found, "pre", value.slice(0, MOST_CHARACTERS)).className = hex ? "hex" : "";
  if (value.length > MOST_CHARACTERS) {
    add(found, "p", `${value.length - MOST_CHARACTERS} more characters`, "quiet");
  }
}

function article(message) {
  const found = document.createElement("article");
  const header = document.createElement("header");
  const { ledger, entry, partition, batch_index: index } = message.position;
  add(header, "time", new Date(message.publish_time).toISOString().replace("T", " "));
  add(header, "span", `Partition ${Math.max(0, partition)}`);
  const link = add(header, "a", `${ledger}.${entry}${index >= 0 ? `.${index}` : ""}`);
  link.href = `?${new URLSearchParams({ tab: "messages", from: idOf(message.position) })}`;
  if (message.value_base64 !== undefined) add(header, "span", "bytes in hexadecimal");
  const key = keyOf(message);
  if (key !== null) add(header, "span", key, "key");
  for (const [name, value] of Object.entries(message.properties)) {
    add(header, "span", `${name}: ${value}`);
  }
  found.append(header);
  body(found, message);
  shown.set(found, message);
  found.hidden = !matches(wanted, message);
  return found;
}

function show() {
  scheduled = false;
  counter.textContent = `${received} received`;
  if (paused || waiting.length === 0) return;
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const made = document.createDocumentFragment();
  for (const message of waiting) made.append(article(message));
  waiting = [];
  log.append(made);
  while (log.childElementCount > MOST_IN_PAGE) log.firstElementChild.remove();
  if (follows) log.scrollTop = log.scrollHeight;
}

function soon() {
  if (scheduled) return;
  scheduled = true;
  // A page in the background gets no frames, and counts all the same.
  if (document.hidden) setTimeout(show, 250);
  else requestAnimationFrame(show);
}

function arrived(data) {
  received += 1;
  soon();
  const message = JSON.parse(data);
  // What is filtered out takes no place, so that rare messages stay in the page of a busy topic.
  if (wanted.any && !matches(wanted, message)) return;
  waiting.push(message);
  // Older ones would leave the page at once.
  if (waiting.length > MOST_IN_PAGE) waiting.shift();
}

function follow(address) {
  const source = new EventSource(address);
  source.addEventListener("open", () => { state.textContent = "Live"; });
  source.addEventListener("message", (event) => arrived(event.data));
  source.addEventListener("error", (event) => {
    if (event.data) state.textContent = JSON.parse(event.data).errorMessage;
    else if (source.readyState === EventSource.CLOSED) state.textContent = "The stream was refused.";
    else state.textContent = "Connecting again…";
  });
}

if (log.dataset.stream) follow(log.dataset.stream);

pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Resume" : "Pause";
  soon();
});

for (const name of FIELDS) {
  const field = form.elements[name];
  field.addEventListener("input", () => {
    const found = read();
    field.setAttribute("aria-invalid", String(found.unreadable === name));
    if (found.unreadable) return;
    wanted = found;
    for (const one of log.children) one.hidden = shown.has(one) && !matches(wanted, shown.get(one));
    const url = new URL(location.href);
    if (field.value) url.searchParams.set(name, field.value);
    else url.searchParams.delete(name);
    history.replaceState(null, "", url);
  });
}
view.addEventListener("change", () => form.requestSubmit(document.getElementById("apply")));

// What the server wrote, so that it is filtered as what comes; long messages stay.
const written = JSON.parse(log.dataset.written);
const base64 = (hex) => btoa(String.fromCharCode(...hex.split(" ").map((byte) => parseInt(byte, 16))));
Array.from(log.children).forEach((one, number) => {
  const message = written[number];
  if (!message) return;
  const { key, value, text, partition, headers: properties } = message;
  const bytes = text ? {} : { value_base64: base64(value) };
  shown.set(one, { key, value, properties, position: { partition }, ...bytes });
});
