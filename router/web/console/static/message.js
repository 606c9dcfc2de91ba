// One message in full: beside the table of messages, or on its own page.
import { copying, ready, send, stampAll } from "./console.js";

// Forms that send a message again stay where they are; `open` shows another form of the value.
export function prepare(section, open = null) {
  copying(section);
  stampAll(section);
  for (const link of open === null ? [] : section.querySelectorAll("a[data-pane]")) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      open(link.href);
    });
  }
  const status = section.querySelector("[role=status]");
  for (const form of section.querySelectorAll("form[data-send]")) {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const button = form.querySelector("button");
      button.disabled = true;
      try {
        const answer = await send(`${form.action}?format=json`, { method: "POST", body: new URLSearchParams(new FormData(form)) });
        const found = await answer.json();
        status.textContent = answer.ok ? found.status : found.detail;
        status.classList.toggle("bad", !answer.ok);
      } catch {
        status.textContent = "The router did not answer.";
      } finally {
        ready(button);
      }
    });
  }
}

// The pane beside a table: it shows the message of a line, and leads back to it.
export function pane(aside, reader, log) {
  let current = null;
  let latest = 0;

  function close() {
    const link = current?.querySelector("a.c-offset");
    current?.removeAttribute("aria-current");
    current = null;
    latest += 1;
    aside.hidden = true;
    aside.replaceChildren();
    reader.classList.remove("open");
    (link?.isConnected ? link : log).focus({ preventScroll: true });
  }

  async function load(url, focus = false) {
    const number = (latest += 1);
    try {
      const answer = await send(url, { headers: { Accept: "text/html" } });
      const text = await answer.text();
      if (number !== latest) return; // another one was opened meanwhile
      const page = new DOMParser().parseFromString(text, "text/html");
      const section = page.getElementById("message") ?? page.querySelector("main");
      const button = document.createElement("button");
      button.type = "button";
      button.className = "close";
      button.textContent = "Close";
      button.addEventListener("click", close);
      aside.replaceChildren(button, document.adoptNode(section));
      prepare(section, (other) => load(other, true));
      aside.hidden = false;
      reader.classList.add("open");
      if (focus) section.focus({ preventScroll: true });
    } catch {
      if (number === latest) aside.textContent = "The router did not answer.";
    }
  }

  function open(article, focus = false) {
    current?.removeAttribute("aria-current");
    current = article;
    article.setAttribute("aria-current", "true");
    return load(article.querySelector("a.c-offset").href, focus);
  }

  log.addEventListener("click", (event) => {
    const article = event.target.closest("article");
    if (article === null || event.target.closest("summary, a.c-topic") || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (getSelection().isCollapsed) open(article, event.detail === 0);
  });
  log.addEventListener("keydown", (event) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (step === undefined) return;
    const at = document.activeElement.closest("article") ?? current;
    let next = at === null ? log.querySelector("article:not([hidden])") : at[step];
    while (next?.hidden) next = next[step];
    const link = next?.querySelector("a.c-offset");
    if (!link) return;
    event.preventDefault();
    link.focus();
    if (current !== null) open(next);
  });
  for (const part of [log, aside]) {
    part.addEventListener("keydown", (event) => { if (event.key === "Escape" && current !== null) close(); });
  }
}

if (document.getElementById("log") === null) prepare(document.getElementById("message"));
