// The dialog that moves a group, with what would change.
import { commands, send } from "./console.js";

const dialog = document.getElementById("reset");
const form = dialog.querySelector("form");
const title = document.getElementById("reset-title");
const to = document.getElementById("to");
const time = document.getElementById("time");
const preview = document.getElementById("preview");
const lines = document.getElementById("lines");
let asked = 0;

async function look() {
  document.getElementById("at").hidden = to.value !== "time";
  const number = ++asked;
  const query = new URLSearchParams({ to: to.value, time: time.value, format: "json" });
  let text = "The router did not answer.";
  let found = {};
  try {
    const answer = await send(`${form.action}?${query}`);
    found = await answer.json();
    text = answer.ok ? found.preview : found.detail;
  } catch {
    // said above
  }
  if (number !== asked) return; // answers may overtake one another
  preview.textContent = text;
  lines.replaceChildren(...(found.commands?.length ? [commands(found.commands)] : []));
}

for (const opener of document.querySelectorAll("[data-reset]")) {
  opener.addEventListener("submit", (event) => {
    event.preventDefault();
    const cells = opener.closest("tr").cells;
    title.textContent = `Reset ${cells[0].textContent} of ${cells[1].textContent}`;
    form.action = opener.action;
    preview.textContent = "";
    dialog.showModal();
    look();
  });
}

to.addEventListener("change", look);
time.addEventListener("input", look);
