// The form that publishes, without leaving the page.
import { copying } from "./console.js";

const form = document.getElementById("publish");
const status = document.getElementById("status");
const done = document.getElementById("done");
const button = form.querySelector("button");

function commands(lines) {
  const details = document.createElement("details");
  details.className = "lines";
  const summary = document.createElement("summary");
  summary.textContent = "As a command";
  details.append(summary);
  for (const text of lines) {
    const line = document.createElement("div");
    line.className = "line";
    const pre = document.createElement("pre");
    pre.tabIndex = 0;
    const code = document.createElement("code");
    code.textContent = text;
    pre.append(code);
    const copy = document.createElement("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.dataset.copy = "";
    copy.hidden = true;
    line.append(pre, copy);
    details.append(line);
  }
  copying(details);
  return details;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  button.disabled = true;
  status.textContent = "Publishing…";
  status.classList.remove("bad");
  done.replaceChildren();
  try {
    const answer = await fetch(`${form.action}?format=json`, {
      method: "POST",
      body: new URLSearchParams(new FormData(form)),
    });
    const found = await answer.json();
    status.textContent = answer.ok ? found.status : found.detail;
    status.classList.toggle("bad", !answer.ok);
    if (answer.ok && found.commands.length > 0) done.append(commands(found.commands));
  } catch {
    status.textContent = "The router did not answer.";
    status.classList.add("bad");
  } finally {
    button.disabled = false;
  }
});
