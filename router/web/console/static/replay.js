// A replay, batch by batch: each is sent again until its answer is there, and stores nothing twice.
import { byId, report, send } from "./console.js";

const MAX_BATCH = 500;
const MAX_TRIES = 5;
const STATE = ["id", "cursor", "until", "end", "stored"];
const FILTERS = ["filter", "key", "header", "path", "partition"];

const [form, start, stop, forget, progress, rate] =
  byId("replay", "start", "stop", "forget", "progress", "rate");
const place = `replay:${form.dataset.topic}:${location.search}`;

let running = false;
let begun = false;
let done = form.dataset.done === "true";
let all = Number(form.dataset.left);

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

function keep() {
  const fields = Object.fromEntries([...STATE, ...FILTERS, "to"].map((name) => [name, form.elements[name].value]));
  sessionStorage.setItem(place, JSON.stringify({ fields, all, done, rate: rate.value }));
}

function show() {
  const focused = [start, stop].includes(document.activeElement);
  start.disabled = running || done;
  stop.disabled = !running;
  if (focused) (running ? stop : done ? forget : start).focus({ preventScroll: true });
  form.elements.to.readOnly = running;
  start.textContent = Number(form.elements.stored.value) > 0 && !done ? "Go on" : "Replay";
}

async function batch(most) {
  const body = new URLSearchParams(new FormData(form));
  body.set("most", most);
  for (let tries = 1; ; tries += 1) {
    try {
      const answer = await send(`${location.pathname}?format=json`, { method: "POST", body });
      const found = await answer.json();
      if (answer.ok) return found;
      if (answer.status < 500 || tries >= MAX_TRIES) throw new Error(found.detail);
    } catch (error) {
      if (!(error instanceof TypeError) || tries >= MAX_TRIES) throw error;
    }
    await pause(500 * tries);
  }
}

async function run() {
  const most = Math.min(Math.max(Number(rate.value) || 1, 1), Number(rate.dataset.most));
  let result = byId("status")[0].textContent;
  running = true;
  show();
  try {
    while (running && !done) {
      const since = performance.now();
      const found = await batch(Math.min(most, MAX_BATCH));
      for (const name of STATE) form.elements[name].value = found[name];
      done = found.done;
      keep();
      all = Math.max(all, found.left, 1);
      progress.value = done ? 1 : 1 - found.left / all;
      result = `${found.stored} messages stored in ${found.to}.`;
      report(result);
      if (found.stalled) throw new Error("no more messages came in time. Go on tries again.");
      if (!done && running) await pause(Math.max(0, (found.batch * 1000) / most - (performance.now() - since)));
    }
    report(`${done ? "Done. " : "Stopped. "}${result}`);
  } catch (error) {
    report(`Stopped: ${error.message}`, true);
  } finally {
    running = false;
    show();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  // The first batch is empty, so that the next one is as large as the rate has it. A batch that was
  // begun is never changed: it may be stored already.
  if (!begun) form.elements.until.value = form.elements.cursor.value;
  begun = true;
  keep();
  run();
});
stop.addEventListener("click", () => { running = false; });
forget.addEventListener("click", () => {
  running = false;
  sessionStorage.removeItem(place);
  location.reload();
});

// A page that was loaded again goes on where it was.
const kept = JSON.parse(sessionStorage.getItem(place) ?? "null");
if (kept !== null) {
  for (const [name, value] of Object.entries(kept.fields)) form.elements[name].value = value;
  ({ all, done } = kept);
  begun = true;
  rate.value = kept.rate;
  report(`${done ? "Done" : "Stopped"}. ${kept.fields.stored} messages stored in ${kept.fields.to}.`);
}
for (const one of [document.getElementById("rates"), stop, forget, progress]) one.hidden = false;
show();
