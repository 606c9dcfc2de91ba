// Charts with axes: what a line has under the pointer; and the page as it is now, every few seconds.
import { send } from "./console.js";

const live = document.getElementById("live");

function move(event) {
  const figure = event.target.closest?.("[data-plot]");
  for (const other of document.querySelectorAll("[data-plot]")) {
    if (other !== figure) other.querySelector(".tip").hidden = true;
  }
  if (!figure) return;
  const { times, lines } = JSON.parse(figure.dataset.plot);
  if (times.length === 0) return;
  const area = figure.querySelector(".area");
  const box = area.getBoundingClientRect();
  const polyline = figure.querySelector("polyline");
  const width = area.querySelector("svg").viewBox.baseVal.width;
  const xs = [...polyline.points].map((point) => point.x * box.width / width);
  const x = event.clientX - box.left;
  let nearest = 0;
  for (const [n, one] of xs.entries()) if (Math.abs(one - x) < Math.abs(xs[nearest] - x)) nearest = n;
  const tip = figure.querySelector(".tip");
  tip.hidden = false;
  tip.style.left = `${xs[nearest]}px`;
  tip.classList.toggle("left", xs[nearest] > box.width / 2);
  tip.querySelector("span").textContent = [
    times[nearest], ...lines.map(({ name, words }) => `${name} ${words[nearest]}`),
  ].join("\n");
}

document.addEventListener("pointermove", move);

async function refresh() {
  try {
    if (!document.hidden && !live.querySelector(".tip:not([hidden])")) {
      const answer = await send(location.href);
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const found = page.getElementById("live");
        // What has the focus stays where it is.
        if (found && !live.contains(document.activeElement)) {
          live.replaceChildren(...document.importNode(found, true).childNodes);
        }
      }
    }
  } catch {
    // the page stays as it is until the router answers
  }
  setTimeout(refresh, Number(live.dataset.every));
}

if (live) setTimeout(refresh, Number(live.dataset.every));
