// The live tail of a topic, newest first: every message is counted, the newest ones are in the page.
import { pane } from "./message.js";
import { matches, readFilter } from "./messages.js";
import { stampAll } from "./console.js";
import { choosing, colour, row } from "./rows.js";
import { search } from "./search.js";

const MOST_IN_PAGE = 500;
const FIELDS = ["filter", "key", "header", "path", "partition"];

const ids = ["log", "counter", "state", "pause", "selection", "fresh", "reader", "columns", "pane"];
const [log, counter, state, pause, form, fresh, reader, menu, aside] = ids.map((id) => document.getElementById(id));
const view = form.elements.view ?? { value: "text" };

let received = 0;
let paused = false;
let scheduled = false;
let atTop = true;
let unseen = 0; // messages that came while the newest are out of view
let filter = read();
let waiting = []; // messages that are not in the page yet, at most MOST_IN_PAGE
const shown = new WeakMap(); // the message of a line

function read() {
  return readFilter(Object.fromEntries(FIELDS.map((name) => [name, form.elements[name]?.value ?? ""])));
}

function article(message) {
  const topic = log.dataset.topic ?? `${log.dataset.topics}/${encodeURIComponent(message.topic)}`;
  const found = row(message, view.value, topic);
  shown.set(found, message);
  found.hidden = !matches(filter, message);
  return found;
}

function show() {
  scheduled = false;
  counter.textContent = `${received} received`;
  fresh.hidden = atTop || unseen === 0 || paused;
  fresh.textContent = `${unseen} new ${unseen === 1 ? "message" : "messages"}`;
  if (paused || waiting.length === 0 || !fresh.hidden) return;
  const made = document.createDocumentFragment();
  for (const message of waiting.reverse()) made.append(article(message));
  waiting = [];
  unseen = 0;
  log.querySelector(".empty")?.remove();
  log.prepend(made);
  while (log.childElementCount > MOST_IN_PAGE) log.lastElementChild.remove();
  log.scrollTop = 0;
  colour(log);
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
  if (filter.any && !matches(filter, message)) return;
  unseen += 1;
  waiting.push(message);
  // Older ones would leave the page at once.
  if (waiting.length > MOST_IN_PAGE) waiting.shift();
}

function follow(address) {
  const source = new EventSource(address);
  source.addEventListener("open", () => { state.textContent = "Live"; state.classList.add("on"); });
  source.addEventListener("message", (event) => arrived(event.data));
  source.addEventListener("error", (event) => {
    if (event.data) state.textContent = JSON.parse(event.data).errorMessage;
    else if (source.readyState === EventSource.CLOSED) state.textContent = "The stream was refused.";
    else state.textContent = "Connecting again…";
    state.classList.remove("on");
  });
}

if (log.dataset.stream) follow(log.dataset.stream);

pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Resume" : "Pause";
  soon();
});
log.addEventListener("scroll", () => {
  atTop = log.scrollTop < 20;
  colour(log);
  if (atTop && waiting.length > 0) soon();
}, { passive: true });
fresh.addEventListener("click", () => {
  log.scrollTop = 0;
  atTop = true;
  log.focus({ preventScroll: true });
  soon();
});

for (const name of FIELDS.filter((one) => form.elements[one])) {
  const field = form.elements[name];
  field.addEventListener("input", () => {
    const found = read();
    field.setAttribute("aria-invalid", String(found.unreadable === name));
    if (name === "filter") document.getElementById("filter-error").textContent = "";
    if (found.unreadable) return;
    filter = found;
    for (const one of log.children) one.hidden = shown.has(one) && !matches(filter, shown.get(one));
    const url = new URL(location.href);
    if (field.value) url.searchParams.set(name, field.value);
    else url.searchParams.delete(name);
    history.replaceState(null, "", url);
  });
}
document.getElementById("starts")?.append(new Option("since I opened this page", new Date().toISOString()));
// A time is picked as clocks go here, and written with its zone.
for (const field of [form.elements.from, document.getElementById("before")].filter(Boolean)) {
  const picker = field.parentElement.querySelector("input[type=datetime-local]");
  const named = () => {
    form.querySelector("input[type=hidden][name=before]")?.remove(); // the place of a page that was turned to
    field.name = field.id;
  };
  picker.hidden = false;
  picker.addEventListener("change", () => {
    if (picker.value) field.value = new Date(picker.value).toISOString().replace(".000Z", "Z");
    named();
  });
  field.addEventListener("input", named);
}
form.elements.view?.addEventListener("change", () => form.requestSubmit(document.getElementById("apply")));

const base64 = (hex) => btoa(String.fromCharCode(...hex.split(" ").map((byte) => parseInt(byte, 16))));

// What the server wrote, so that it is filtered as what comes; long messages stay.
function note(part) {
  const written = JSON.parse(part.dataset.written);
  return Array.from(part.querySelectorAll("article"), (one, number) => {
    const message = written[number];
    if (message) {
      const { key, value, text, partition, headers: properties } = message;
      const bytes = text ? {} : { value_base64: base64(value) };
      shown.set(one, { key, value, properties, position: { partition }, ...bytes });
    }
    return one;
  });
}

note(log);
search((page) => {
  const found = note(page.getElementById("log")).map((one) => document.adoptNode(one));
  if (found.length > 0) log.querySelector(".empty")?.remove();
  log.append(...found.slice(0, Math.max(0, MOST_IN_PAGE - log.childElementCount)));
  stampAll(log);
  colour(log);
});
choosing(menu, reader);
pane(aside, reader, log);
colour(log);
