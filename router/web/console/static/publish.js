// The form that publishes, without leaving the page.
import { commands, send } from "./console.js";

const form = document.getElementById("publish");
const status = document.getElementById("status");
const done = document.getElementById("done");
const button = form.querySelector("button");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  button.disabled = true;
  status.textContent = "Publishing…";
  status.classList.remove("bad");
  done.replaceChildren();
  try {
    const answer = await send(`${form.action}?format=json`, {
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
