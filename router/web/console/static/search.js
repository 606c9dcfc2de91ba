// A search that goes on by itself: one bounded request after the other, each where the last ended.
import { byId, send } from "./console.js";

const MAX_FOUND = 200; // messages that one run adds before it waits for the user
const PAUSE = 50;

const [box, note, stop] = byId("search", "note", "stop");
const bar = box?.querySelector("progress");
const number = new Intl.NumberFormat("en").format;
const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

let running = false;
const known = box?.dataset ?? {};
let next = known.next ?? "";
const done = { checked: Number(known.checked), found: Number(known.found) };
// Not known of a search that begins or ends at a time.
const total = Number(known.total ?? NaN);

function show(left = "") {
  let of = number(done.checked);
  if (total >= 0) of = next === "" ? `all ${number(total)}` : `${number(Math.min(done.checked, total))} of ${number(total)}`;
  const found = done.found === 0 && next === "" ? "no message matches" : `${number(done.found)} found`;
  note.textContent = `Checked ${of}, ${found}${left}.`;
  const empty = document.querySelector("#log .empty");
  if (empty !== null) empty.textContent = next === "" ? `No message matches, of ${of}.` : `No message matches yet, of ${number(done.checked)}.`;
  bar.hidden = next === "" && !running;
  if (total >= 0) bar.value = next === "" ? 1 : Math.min(1, done.checked / Math.max(1, total));
  else bar.removeAttribute("value");
  stop.hidden = next === "";
  stop.textContent = running ? "Stop" : "Continue";
}

// What a page found, and how far it came; `add` takes its lines.
async function step(add) {
  const answer = await send(next, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(`The router answered ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const { checked, found, next: further } = page.getElementById("search").dataset;
  if (further === next && checked === "0") throw new Error("Nothing more came in time");
  done.checked += Number(checked);
  done.found += Number(found);
  next = further ?? "";
  add(page);
}

async function run(add) {
  const began = performance.now();
  const from = { ...done };
  running = true;
  show();
  try {
    while (running && next !== "" && done.found - from.found < MAX_FOUND) {
      await step(add);
      const left = ((total - done.checked) * (performance.now() - began)) / Math.max(1, done.checked - from.checked);
      show(done.checked < total ? `, about ${Math.max(1, Math.round(left / 1000))} s left` : "");
      if (next !== "") await pause(PAUSE);
    }
    running = false;
    show();
  } catch (error) {
    running = false;
    show();
    note.textContent += ` Stopped: ${error.message}.`;
  }
}

// Go on with the search that the server began, until it is whole, has enough, or is stopped.
export function search(add) {
  if (known.checked === undefined) return;
  stop.addEventListener("click", () => {
    if (running) running = false;
    else run(add);
  });
  if (next !== "" && done.found < MAX_FOUND) run(add);
  else show();
}
