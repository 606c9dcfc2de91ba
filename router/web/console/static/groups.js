// The dialog that moves a group, with what would change.
import { commands, send } from "./console.js";

const dialog = document.getElementById("reset");
const form = dialog?.querySelector("form");
const title = document.getElementById("reset-title");
const to = document.getElementById("to");
const preview = document.getElementById("preview");
const lines = document.getElementById("lines");
let latest = 0;

async function refresh() {
  for (const field of form.querySelectorAll("[data-for]")) {
    field.hidden = field.dataset.for !== to.value;
  }
  const number = ++latest;
  const query = new URLSearchParams(new FormData(form));
  for (const name of ["back", "csrf_token"]) query.delete(name); // of the form alone
  query.set("format", "json");
  let text = "The router did not answer.";
  let found = {};
  try {
    const answer = await send(`${form.action}?${query}`);
    found = await answer.json();
    text = answer.ok ? found.preview : found.detail;
  } catch {
    // reported above
  }
  if (number !== latest) return; // answers may overtake one another
  preview.textContent = text;
  lines.replaceChildren(...(found.commands?.length ? [commands(found.commands)] : []));
}

for (const opener of dialog ? document.querySelectorAll("[data-reset]") : []) {
  opener.addEventListener("submit", (event) => {
    event.preventDefault();
    title.textContent = opener.dataset.reset;
    form.action = opener.action;
    preview.textContent = "";
    dialog.showModal();
    refresh();
  });
}

to?.addEventListener("change", refresh);
for (const input of form?.querySelectorAll("[data-for] input") ?? []) {
  input.addEventListener("input", refresh);
}
