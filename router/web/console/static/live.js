// The live tail of a topic: every message is counted, the newest ones are in the page.

const MOST_IN_PAGE = 500;
const MOST_CHARACTERS = 20000;

const log = document.getElementById("log");
const counter = document.getElementById("counter");
const state = document.getElementById("state");
const pause = document.getElementById("pause");
const filter = document.getElementById("filter");

let received = 0;
let paused = false;
let scheduled = false;
let waiting = []; // messages that are not in the page yet, at most MOST_IN_PAGE

function add(parent, name, text, kind) {
  const part = document.createElement(name);
  part.textContent = text;
  if (kind) part.className = kind;
  parent.append(part);
}

function hexadecimal(base64) {
  return Array.from(atob(base64), (c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
}

function article(message) {
  const found = document.createElement("article");
  const header = document.createElement("header");
  const { ledger, entry, partition, batch_index: index } = message.position;
  add(header, "time", new Date(message.publish_time).toISOString().replace("T", " "));
  add(header, "span", `Partition ${Math.max(0, partition)}`);
  add(header, "span", `${ledger}.${entry}${index >= 0 ? `.${index}` : ""}`);
  const bytes = message.value_base64 !== undefined;
  if (bytes) add(header, "span", "bytes in hexadecimal");
  const key = message.key_base64 === undefined ? message.key : hexadecimal(message.key_base64);
  if (key !== null) add(header, "span", key, "key");
  for (const [name, value] of Object.entries(message.properties)) {
    add(header, "span", `${name}: ${value}`);
  }
  const value = bytes ? hexadecimal(message.value_base64) : message.value ?? "";
  found.append(header);
  add(found, "pre", value.slice(0, MOST_CHARACTERS));
  if (value.length > MOST_CHARACTERS) {
    add(found, "p", `${value.length - MOST_CHARACTERS} more characters`, "quiet");
  }
  return found;
}

function sift(found) {
  found.hidden = !found.textContent.toLowerCase().includes(filter.value.toLowerCase());
  return found;
}

function show() {
  scheduled = false;
  counter.textContent = `${received} received`;
  if (paused || waiting.length === 0) return;
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const made = document.createDocumentFragment();
  for (const data of waiting) made.append(sift(article(JSON.parse(data))));
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

const source = new EventSource(log.dataset.stream);
source.addEventListener("open", () => { state.textContent = "Live"; });
source.addEventListener("message", (event) => {
  received += 1;
  soon();
  // What is filtered out takes no place, so that rare messages stay in the page of a busy topic.
  if (filter.value && sift(article(JSON.parse(event.data))).hidden) return;
  waiting.push(event.data);
  // Older ones would leave the page at once.
  if (waiting.length > MOST_IN_PAGE) waiting.shift();
});
source.addEventListener("error", (event) => {
  if (event.data) state.textContent = JSON.parse(event.data).errorMessage;
  else if (source.readyState === EventSource.CLOSED) state.textContent = "The stream was refused.";
  else state.textContent = "Connecting again…";
});

pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Resume" : "Pause";
  soon();
});

document.getElementById("apply").hidden = true; // it is applied as it is written
filter.form.addEventListener("submit", (event) => {
  if (!event.submitter?.matches("[data-export]")) event.preventDefault();
});
filter.addEventListener("input", () => {
  for (const found of log.children) sift(found);
  const url = new URL(location.href);
  if (filter.value) url.searchParams.set("filter", filter.value);
  else url.searchParams.delete("filter");
  history.replaceState(null, "", url);
});

for (const found of log.children) sift(found);
log.scrollTop = log.scrollHeight;
