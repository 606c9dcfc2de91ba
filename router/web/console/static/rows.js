// Lines of the table of messages: how one is made, its columns, its times and its colours.
import { stamp } from "./console.js";
import { hexdump, idOf, keyOf, pieces, tree, valueOf, visible } from "./messages.js";

const MAX_PREVIEW = 400;
const LINES_AHEAD = 20;
const COLUMNS = { time: "Time", partition: "Partition", offset: "Position", key: "Key", headers: "Headers", value: "Value", size: "Size" };
// Names of properties that are no headers of a client's: message_details.py has the same.
const OWN = /^(router-((kafka-|nats-)?headers|(origin-)?(topic|group|position)|partition|publish-time|pipeline|error|undecoded|replayed)|Nats-Subject|REAL_(TOPIC|SUBSCRIPTION)|ORIGIN_MESSAGE_ID(Y_TIME)?|RECONSUMETIMES)$/;
const HIDDEN = "console.columns";

function add(parent, name, text, kind) {
  const part = document.createElement(name);
  part.textContent = visible(text);
  if (kind) part.className = kind;
  parent.append(part);
  return part;
}

export function size(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB"];
  let [value, unit] = [count / 1024, 0];
  while (value >= 1024 && unit < 2) [value, unit] = [value / 1024, unit + 1];
  return `${value.toFixed(1)} ${units[unit]}`;
}

function branch(node) {
  const item = document.createElement("li");
  const name = node.name === "" ? "" : `${node.name}: `;
  if (node.children.length === 0) {
    add(item, "span", name, "name");
    add(item, "span", node.text, node.kind);
    return item;
  }
  const details = document.createElement("details");
  details.open = true;
  const summary = add(details, "summary", "");
  add(summary, "span", name, "name");
  add(summary, "span", node.text, "quiet");
  const list = document.createElement("ul");
  list.append(...node.children.map(branch));
  if (node.more > 0) add(list, "li", `${node.more} more`, "quiet");
  details.append(list);
  item.append(details);
  return item;
}

function value(line, message, view, bytes) {
  if (message.value === null) {
    add(add(line, "span", "", "c-value"), "span", "No value", "tag warn");
    return;
  }
  if (bytes === 0) {
    add(add(line, "span", "", "c-value"), "span", "empty", "tag");
    return;
  }
  const text = message.value_base64 === undefined;
  const root = view === "tree" && text ? tree(message.value) : null;
  if (root !== null) {
    const list = add(line, "ul", "", "c-value tree");
    list.append(branch(root));
  } else if (view === "hex") {
    add(line, "pre", hexdump(message), "c-value hex");
  } else {
    if (!text) add(line, "span", "bytes", "tag");
    add(line, "pre", valueOf(message).slice(0, MAX_PREVIEW));
  }
}

// A message as the server writes it; `topic` is the address of its page.
export function row(message, view, topic) {
  const article = document.createElement("article");
  const line = add(article, "div", "", "line");
  const { ledger, entry, partition, batch_index: index } = message.position;
  const at = new Date(message.publish_time);
  const time = add(line, "time", "", "c-time");
  time.dateTime = at.toISOString();
  stamp(time, at);
  if (message.topic !== undefined) {
    add(line, "a", message.topic, "c-topic").href = `${topic}?tab=messages`;
  }
  const part = add(line, "span", "", "c-partition");
  add(part, "span", "Partition ", "unseen");
  part.append(Math.max(0, partition));
  const link = add(line, "a", `${ledger}:${entry}:${Math.max(0, partition)}${index >= 0 ? `:${index}` : ""}`, "c-offset");
  link.href = `${topic}/messages/${encodeURIComponent(idOf(message.position))}`;
  const key = keyOf(message);
  if (key === null) add(line, "span", "–", "c-key none");
  else add(line, "span", key, `c-key key${message.key_base64 === undefined ? "" : " bytes"}`);
  const headers = add(line, "span", "", "c-headers");
  for (const [name, text] of Object.entries(message.properties)) {
    if (!OWN.test(name)) add(headers, "span", `${name}: ${text}`);
  }
  const bytes = message.bytes ?? sizeOf(message);
  value(line, message, view, bytes);
  add(line, "span", size(bytes), "c-size");
  return article;
}

function sizeOf({ value: text, value_base64: base64 }) {
  if (base64 !== undefined) return (base64.length * 3) / 4 - (base64.endsWith("==") ? 2 : base64.endsWith("=") ? 1 : 0);
  return text === null ? 0 : new TextEncoder().encode(text).length;
}

// JSON in the lines that are in view, and a few more: all of a busy topic would take too long.
export function colour(log) {
  const height = log.firstElementChild?.offsetHeight || 34; // on a narrow screen a line is two
  const first = Math.max(0, Math.floor(log.scrollTop / height) - LINES_AHEAD);
  const last = first + Math.ceil(log.clientHeight / height) + 2 * LINES_AHEAD;
  for (let n = first; n < Math.min(last, log.childElementCount); n += 1) {
    const pre = log.children[n].querySelector(".line > pre:not(.hex)");
    if (!pre || pre.childElementCount > 0 || pre.dataset.plain) continue;
    const found = pieces(pre.textContent);
    if (found.length < 2) {
      pre.dataset.plain = "";
      continue;
    }
    pre.replaceChildren(...found.map(([kind, text]) => {
      if (kind === "") return text;
      const part = document.createElement("span");
      part.className = kind;
      part.textContent = text;
      return part;
    }));
  }
}

function choice(parent, label, checked, change) {
  const one = add(parent, "label", "", "check");
  const input = document.createElement("input");
  Object.assign(input, { type: "checkbox", checked });
  input.addEventListener("change", () => change(input.checked));
  one.append(input, ` ${label}`);
}

// The menu of columns and of times, which the browser keeps.
export function choosing(menu, reader) {
  const box = menu.querySelector(".pop");
  let hidden = (localStorage.getItem(HIDDEN) ?? reader.dataset.hide).split(" ").filter(Boolean);
  reader.dataset.hide = hidden.join(" ");
  for (const [name, label] of Object.entries(COLUMNS)) {
    choice(box, label, !hidden.includes(name), (shown) => {
      hidden = hidden.filter((one) => one !== name);
      if (!shown) hidden.push(name);
      reader.dataset.hide = hidden.join(" ");
      localStorage.setItem(HIDDEN, hidden.join(" "));
    });
  }
  menu.hidden = false;
  document.addEventListener("click", (event) => { if (!menu.contains(event.target)) menu.open = false; });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}
