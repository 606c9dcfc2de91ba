// Draws the charts of a page on, as long as it is visible.
import { send } from "./console.js";
import { merged, points, short, values, words } from "./samples.js";

const charts = document.querySelector("[data-charts]");
const figures = [...document.querySelectorAll("[data-chart]")];
// Of each series its samples: the workers of a router answer in turns, and know different ones.
const seen = new Map(charts ? Object.entries(JSON.parse(charts.dataset.samples)) : []);

function draw(figure, samples, now) {
  const found = values(figure.dataset.chart, samples);
  if (found.length === 0) return;
  const text = words(figure.dataset.name, found);
  const svg = figure.querySelector("svg");
  svg.querySelector("polyline").setAttribute("points", points(found, now));
  svg.setAttribute("aria-label", text);
  figure.querySelector("[data-latest]").textContent =
    figure.dataset.short === undefined ? short(found.at(-1)[1]) : `${found.at(-1)[1].toFixed(1)}/s`;
}

async function refresh() {
  const url = new URL(charts.dataset.charts || location.href, location.href);
  url.searchParams.set("format", "json");
  const answer = await send(url);
  if (!answer.ok) return;
  const { histories, now } = await answer.json();
  for (const [series, samples] of Object.entries(histories)) {
    seen.set(series, merged(seen.get(series) ?? [], samples, now));
  }
  for (const figure of figures) {
    const samples = seen.get(figure.dataset.series);
    if (samples) draw(figure, samples, now);
  }
}

async function again() {
  try {
    if (!document.hidden) await refresh();
  } catch {
    // the charts stay as they are until the router answers
  }
  setTimeout(again, Number(charts.dataset.every));
}

if (figures.length > 0) setTimeout(again, Number(charts.dataset.every));
