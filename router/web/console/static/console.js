// What all pages share: dialogs, copying of commands, tabs by arrow keys.

document.querySelector("nav[aria-label=Main] [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

for (const opener of document.querySelectorAll("[data-dialog]")) {
  opener.addEventListener("click", (event) => {
    const dialog = document.getElementById(opener.dataset.dialog);
    if (dialog === null) return;
    event.preventDefault();
    dialog.showModal();
  });
}

for (const dialog of document.querySelectorAll("dialog")) {
  if (dialog.open) {
    // Without script it stands in the page; with it, it holds the focus.
    dialog.close();
    dialog.showModal();
  }
  dialog.addEventListener("close", () => {
    const url = new URL(location.href);
    url.searchParams.delete("dialog");
    history.replaceState(null, "", url);
  });
  for (const closer of dialog.querySelectorAll("[data-close]")) {
    closer.addEventListener("click", (event) => {
      event.preventDefault();
      dialog.close();
    });
  }
}

// The theme is kept by the router; the page changes at once.
document.querySelector("form.theme").addEventListener("submit", (event) => {
  event.preventDefault();
  const chosen = event.submitter.value;
  const form = event.currentTarget;
  document.documentElement.dataset.theme = chosen;
  document.querySelector("meta[name=color-scheme]").content = chosen === "system" ? "light dark" : chosen;
  for (const button of form.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.value === chosen));
  }
  send(form.action, { method: "POST", body: new URLSearchParams({ theme: chosen }) }).catch(() => {});
});

// Times stand in UTC with a Z, or as clocks go here; the browser keeps which.
const ZONE = "console.zone";
const zone = document.getElementById("zone");
let local = false;
try {
  local = localStorage.getItem(ZONE) === "local";
} catch {
  // storage is off
}

const two = (number, digits = 2) => String(number).padStart(digits, "0");

export function stamp(part, at) {
  let [day, clock] = at.toISOString().split("T");
  if (local) {
    day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
  }
  if (part.title) {
    part.title = `${day} ${clock}`; // the text says how long ago it is
    return;
  }
  const date = document.createElement("span");
  date.className = "day";
  date.textContent = `${day} `;
  part.replaceChildren(date, clock);
}

export function stampAll(parent) {
  for (const one of parent.querySelectorAll("time[datetime]")) {
    const at = new Date(one.dateTime);
    if (!Number.isNaN(at.getTime())) stamp(one, at);
  }
}

function showZone() {
  zone.textContent = local ? "Local" : "UTC";
  zone.setAttribute("aria-pressed", String(local));
}

zone.hidden = false;
showZone();
if (local) stampAll(document);
zone.addEventListener("click", () => {
  local = !local;
  try {
    localStorage.setItem(ZONE, local ? "local" : "utc");
  } catch {
    // storage is off: this page has it
  }
  showZone();
  stampAll(document);
});

export const byId = (...names) => names.map((name) => document.getElementById(name));

// The line of a page that says how its action goes.
export function report(text, bad = false) {
  const [status] = byId("status");
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

// Every request of a script: it has the token of the session, without which nothing is changed.
export async function send(url, options = {}) {
  const token = document.querySelector("meta[name=csrf-token]")?.content ?? "";
  const headers = { ...options.headers, "X-CSRF-Token": token };
  const answer = await fetch(url, { ...options, headers });
  if (answer.status === 401) {
    // The session is over; the sign-in page leads back to here.
    const next = location.pathname.slice(document.body.dataset.base.length) + location.search;
    location.assign(`${document.body.dataset.base}/console/signin?${new URLSearchParams({ next })}`);
  }
  return answer;
}

// A button whose action has ended: a browser takes the focus away while it is disabled.
export function ready(button) {
  button.disabled = false;
  if (document.activeElement === document.body) button.focus({ preventScroll: true });
}

export function copying(part) {
  if (!navigator.clipboard) return; // plain HTTP on another address than loopback
  for (const button of part.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    const label = [...button.childNodes];
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.replaceChildren(...label); }, 2000);
    });
  }
}

copying(document);

// What the router refuses is said in the form, which keeps what was written.
async function stay(form) {
  const url = new URL(form.action);
  const fields = new URLSearchParams(new FormData(form));
  const get = form.method === "get";
  if (get) url.search = fields;
  const answer = await send(url, { headers: { Accept: "text/html" }, method: form.method, body: get ? undefined : fields });
  if (answer.ok) {
    if (get || answer.redirected) location.assign(answer.url);
    else form.submit(); // a preview: it changes nothing
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const text = page.querySelector("main p").textContent;
  let note = form.querySelector("[role=alert]");
  if (note === null) {
    note = document.createElement("p");
    note.className = "bad";
    note.setAttribute("role", "alert");
    form.append(note);
  }
  note.textContent = text;
  for (const field of form.elements) {
    field.removeAttribute("aria-invalid");
    if (field.name && text.includes(`${field.name}:`)) field.setAttribute("aria-invalid", "true");
  }
}

for (const form of document.querySelectorAll("form[data-stay]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    stay(form).catch(() => form.submit());
  });
}

// The lines of an action, as templates/macros.html has them.
export function commands(lines) {
  const details = document.createElement("details");
  details.className = "lines";
  const summary = document.createElement("summary");
  summary.textContent = "curl and command line";
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

// Tables whose columns sort the rows that the page has.
for (const table of document.querySelectorAll("table[data-sort]")) {
  const body = table.tBodies[0];
  const value = (row, n) => row.cells[n].dataset.value ?? row.cells[n].textContent.trim();
  const order = (a, b) => {
    const [x, y] = [a, b].map((text) => Number.parseFloat(text.replaceAll(",", "")));
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  for (const head of table.tHead.querySelectorAll("th")) {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const n = head.cellIndex;
      const before = head.getAttribute("aria-sort");
      // The largest number first, and the first name.
      const down = before === null ? head.classList.contains("number") : before === "ascending";
      for (const other of table.tHead.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].filter((row) => row.cells.length > n);
      rows.sort((a, b) => order(value(a, n), value(b, n)) * (down ? -1 : 1));
      body.append(...rows);
    });
  }
}

for (const list of document.querySelectorAll("[role=tablist]")) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  for (const tab of tabs) tab.tabIndex = tab.getAttribute("aria-selected") === "true" ? 0 : -1;
  list.addEventListener("keydown", (event) => {
    const at = tabs.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (event.key === " ") {
      event.preventDefault();
      document.activeElement.click();
    } else if (to !== undefined) {
      event.preventDefault();
      tabs[(to + tabs.length) % tabs.length].focus();
    }
  });
}
