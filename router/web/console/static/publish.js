// The form that publishes, without leaving the page.
import { byId, commands, ready, report, send, stampAll } from "./console.js";
import { colour, row } from "./rows.js";

const [form, done, message, written, rows] = byId("publish", "done", "message", "headers", "rows");
const button = form.querySelector("button.main");
const [stop, progress, rate] = byId("stop", "progress", "rate");

// The draft of each topic, the last ones of them; it is there again after a reload.
const DRAFTS = "router-drafts";
const MAX_DRAFTS = 30;
const MAX_DRAFT_CHARACTERS = 50_000;
const KEPT = ["format", "key", "message", "headers"];

function drafts() {
  try {
    return new Map(JSON.parse(localStorage.getItem(DRAFTS) ?? "[]"));
  } catch {
    return new Map(); // storage is off, or has something else
  }
}

function keep() {
  const all = drafts();
  const mine = KEPT.map((name) => form.elements[name].value);
  all.delete(form.action);
  if (mine.join("").length <= MAX_DRAFT_CHARACTERS) all.set(form.action, mine);
  try {
    localStorage.setItem(DRAFTS, JSON.stringify([...all].slice(-MAX_DRAFTS)));
  } catch {
    // storage is off or full: the form works without
  }
}

const draft = drafts().get(form.action);
if (draft && message.value === "") {
  for (const [n, name] of KEPT.entries()) form.elements[name].value = draft[n];
}
form.addEventListener("input", keep);

// Templates of each topic, by their names.
const TEMPLATES = "router-templates";
const MAX_TEMPLATES = 50;
const [name, names] = byId("template", "templates");

function templates(change) {
  let all = {};
  try {
    all = JSON.parse(localStorage.getItem(TEMPLATES) ?? "{}");
    const mine = new Map(all[form.action] ?? []);
    if (change) {
      change(mine);
      all[form.action] = [...mine].slice(-MAX_TEMPLATES);
      localStorage.setItem(TEMPLATES, JSON.stringify(all));
    }
    names.replaceChildren(...Array.from(mine.keys(), (one) => new Option(one, one)));
    return mine;
  } catch {
    report("This browser keeps no templates.", true);
    return new Map();
  }
}

function fill(values) {
  for (const [n, one] of KEPT.entries()) form.elements[one].value = values[n];
  showHeaders();
  keep();
}

name.addEventListener("input", () => {
  const found = templates().get(name.value);
  if (found) fill(found);
});
for (const [id, change] of [
  ["save", (mine) => mine.set(name.value, KEPT.map((one) => form.elements[one].value))],
  ["drop", (mine) => mine.delete(name.value)],
]) {
  document.getElementById(id).addEventListener("click", () => {
    if (name.value === "") name.focus();
    else templates(change);
    if (id === "drop") name.value = "";
  });
}
document.getElementById("example")?.addEventListener("click", (event) => {
  message.value = event.currentTarget.dataset.value;
  form.elements.format.value = "JSON";
  form.elements.schema.checked = true;
  keep();
});
document.getElementById("saved").hidden = false;
templates();

// Beside the form, where there is place for it: what the topic has, and what comes.
const MAX_LATEST = 50;
const SHOWN_PER_SECOND = 10;
const latest = document.getElementById("latest");
if (latest && matchMedia("(min-width: 80rem)").matches) {
  const topic = location.pathname;
  const log = document.getElementById("log");
  send(`${topic}?tab=messages`, { headers: { Accept: "text/html" } }).then(async (answer) => {
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("log");
    log.append(...page.querySelectorAll("article, .empty"));
    stampAll(log);
    colour(log);
    latest.hidden = false;
    if (!page.dataset.stream) return;
    new EventSource(`${page.dataset.stream}&sample=${SHOWN_PER_SECOND}`).onmessage = (event) => {
      log.querySelector(".empty")?.remove();
      log.prepend(row(JSON.parse(event.data), "text", topic));
      log.children[MAX_LATEST]?.remove();
      colour(log);
    };
  }).catch(() => {}); // the form works without
}
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!button.disabled) form.requestSubmit(button);
  }
});
document.getElementById("pace").hidden = false;

// What a placeholder stands for, another value for each message.
const PLACEHOLDER = /\{\{(uuid|now|i)\}\}/g;

function uuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (one) => one.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

const filled = (text, i) => text.replace(PLACEHOLDER, (_, name) =>
  ({ uuid, now: () => new Date().toISOString(), i: () => String(i) })[name]());

// Headers as rows of a name and a value, which become the lines that the form sends.
function header(name = "", value = "") {
  const made = document.createElement("div");
  made.className = "bar";
  for (const [label, text] of [["Header name", name], ["Header value", value]]) {
    const field = document.createElement("input");
    field.value = text;
    field.setAttribute("aria-label", label);
    field.placeholder = label === "Header name" ? "name" : "value";
    field.autocomplete = "off";
    field.addEventListener("input", gather);
    made.append(field);
  }
  const remove = document.createElement("button");
  remove.type = "button";
  remove.textContent = "Remove";
  remove.addEventListener("click", () => {
    made.remove();
    gather();
  });
  made.append(remove);
  return made;
}

function gather() {
  const lines = Array.from(rows.querySelectorAll("div"), (one) =>
    Array.from(one.querySelectorAll("input"), (field) => field.value));
  written.value = lines.filter(([name]) => name !== "").map(([name, value]) => `${name}: ${value}`).join("\n");
  keep();
}

const adding = document.createElement("button");
adding.type = "button";
adding.textContent = "Add header";
adding.addEventListener("click", () => {
  adding.before(header());
  adding.previousElementSibling.querySelector("input").focus();
});
function showHeaders() {
  rows.replaceChildren(adding);
  for (const line of written.value.split("\n").filter((one) => one.includes(":"))) {
    const at = line.indexOf(":");
    adding.before(header(line.slice(0, at).trim(), line.slice(at + 1).trim()));
  }
}

showHeaders();
rows.hidden = false;
written.hidden = true;
document.querySelector("label[for=headers]").htmlFor = "";
document.getElementById("header-lines").hidden = true;

// What the router found wrong with JSON is shown in its place.
function point(detail) {
  const found = /line (\d+), column (\d+)/.exec(detail ?? "");
  if (found === null || form.elements.file.files.length > 0) return;
  const lines = message.value.split("\n").slice(0, Number(found[1]) - 1);
  const at = lines.reduce((sum, line) => sum + line.length + 1, 0) + Number(found[2]) - 1;
  message.focus();
  message.setSelectionRange(at, at + 1);
}

const post = (body) => send(`${form.action}?format=json`, { method: "POST", body });

const storedText = (count) => `${count} ${count === 1 ? "message" : "messages"} stored`;

// One message after the other, each with its own values.
async function series() {
  const times = Number(form.elements.repeat.value) || 1;
  const pause = Number(rate.value) ? 1000 / Number(rate.value) : 0;
  const start = Date.now();
  let stopped = false;
  stop.onclick = () => { stopped = true; };
  stop.hidden = progress.hidden = false;
  progress.max = times;
  let stored = 0;
  for (let i = 1; i <= times && !stopped; i += 1) {
    const body = new FormData(form);
    body.delete("repeat");
    for (const name of ["key", "message", "headers"]) body.set(name, filled(body.get(name), i));
    const answer = await post(body);
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.detail);
    stored += found.stored;
    progress.value = i;
    report(`${storedText(stored)}, ${i} of ${times}`);
    while (!stopped && i < times && Date.now() < start + i * pause) {
      await new Promise((resolve) => { setTimeout(resolve, Math.min(100, start + i * pause - Date.now())); });
    }
  }
  report(`${storedText(stored)}${stopped ? "; stopped" : ""}`);
}

async function once() {
  const answer = await post(new FormData(form));
  const found = await answer.json();
  report(answer.ok ? found.status : found.detail, !answer.ok);
  if (!answer.ok) point(found.detail);
  else if (found.commands.length > 0) done.append(commands(found.commands));
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  button.disabled = true;
  report("Publishing…");
  done.replaceChildren();
  const text = KEPT.map((name) => form.elements[name].value).join("\n");
  try {
    await (Number(rate.value) || text.search(PLACEHOLDER) >= 0 ? series() : once());
  } catch (error) {
    report(error.name === "Error" ? error.message : "The router did not answer.", true);
  } finally {
    stop.hidden = progress.hidden = true;
    ready(button);
  }
});
