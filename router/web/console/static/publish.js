// The form that publishes, without leaving the page.
import { byId, commands, report, send } from "./console.js";

const [form, done, message, written, rows] = byId("publish", "done", "message", "headers", "rows");
const button = form.querySelector("button.main");

// Headers as rows of a name and a value, which become the lines that the form sends.
function row(name = "", value = "") {
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
}

const adding = document.createElement("button");
adding.type = "button";
adding.textContent = "Add header";
adding.addEventListener("click", () => {
  adding.before(row());
  adding.previousElementSibling.querySelector("input").focus();
});
rows.append(adding);
for (const line of written.value.split("\n").filter((one) => one.includes(":"))) {
  const at = line.indexOf(":");
  adding.before(row(line.slice(0, at).trim(), line.slice(at + 1).trim()));
}
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

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  button.disabled = true;
  report("Publishing…");
  done.replaceChildren();
  try {
    const answer = await send(`${form.action}?format=json`, {
      method: "POST",
      body: new FormData(form),
    });
    const found = await answer.json();
    report(answer.ok ? found.status : found.detail, !answer.ok);
    if (!answer.ok) point(found.detail);
    if (answer.ok && found.commands.length > 0) done.append(commands(found.commands));
  } catch {
    report("The router did not answer.", true);
  } finally {
    button.disabled = false;
  }
});
