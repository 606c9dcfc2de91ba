// Requeues and discards dead letters, some at a time, with progress; Stop ends it after the next.
import { byId, commands, ready, send } from "./console.js";

const MOST_REFUSED = 20;

const [form, status, refused, progress] = byId("letters", "status", "refused", "progress");
const [stop, every, sure, discard] = byId("stop", "every", "sure", "discard");
const buttons = [...form.querySelectorAll("button")].filter((button) => button !== stop);
let stopped = false;

every.hidden = false;
every.addEventListener("change", () => {
  for (const one of form.querySelectorAll("tbody input")) one.checked = every.checked;
});
stop.addEventListener("click", () => { stopped = true; });

function note(text) {
  const item = document.createElement("li");
  item.textContent = text;
  if (refused.childElementCount < MOST_REFUSED) refused.append(item);
}

async function run(action, fields) {
  const sum = { done: 0, refused: 0 };
  for (;;) {
    const answer = await send(`${action}?format=json`, { method: "POST", body: fields });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.detail);
    sum.done += found.done;
    for (const [place, reason] of Object.entries(found.refused)) {
      sum.refused += 1;
      note(`${place}: ${reason}`);
    }
    progress.value = sum.done + sum.refused;
    status.textContent = `${sum.done} done.`
      + (sum.refused ? ` ${sum.refused} failed and still wait.` : "")
      + (found.failure ? ` ${found.failure}` : "");
    if (!found.more || stopped) return found.commands;
    fields.set("behind", found.behind);
    fields.set("before", found.before);
  }
}

discard.addEventListener("click", () => {
  sure.close("discard");
  work(buttons.find((button) => button.value === "all" && button.hasAttribute("formaction")));
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const button = event.submitter ?? buttons[0];
  if (button.value === "all" && button.hasAttribute("formaction")) sure.showModal();
  else work(button);
});

async function work(button) {
  const fields = new URLSearchParams(new FormData(form, button));
  const all = button.value === "all";
  status.classList.remove("bad");
  status.textContent = "Working…";
  refused.replaceChildren();
  stopped = false;
  progress.hidden = stop.hidden = !all;
  for (const one of buttons) one.disabled = true;
  try {
    const lines = await run(button.getAttribute("formaction") ?? form.action, fields);
    refused.after(commands(lines));
  } catch (error) {
    status.textContent = error instanceof TypeError ? "The router did not answer." : error.message;
    status.classList.add("bad");
  } finally {
    stop.hidden = true;
    for (const one of buttons) one.disabled = false;
    ready(button);
    await fresh();
  }
}

// The letters that wait now, as the page has them when it is opened.
async function fresh() {
  try {
    const answer = await send(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const body = page.querySelector("#letters tbody");
    document.getElementById("waiting").textContent = page.getElementById("waiting").textContent;
    if (body) form.querySelector("tbody").replaceWith(document.importNode(body, true));
    every.checked = false;
  } catch {
    // the status says how far it came
  }
}
