// What a chart shows: values over time, its line, and its words, as the router writes them.

const SPAN = 15 * 60 * 1000;
const [WIDTH, HEIGHT] = [300, 60];

// Samples are [time, messages stored, lag].
export function values(kind, samples) {
  if (kind === "lag") return samples.map(([at, , lag]) => [at, lag]);
  const found = [];
  for (let n = 1; n < samples.length; n += 1) {
    const [[then, had, lagged], [at, has, lags]] = [samples[n - 1], samples[n]];
    if (has < had) continue; // what retention took is not a rate
    const grown = kind === "delivered" ? Math.max(0, has - had - (lags - lagged)) : has - had;
    found.push([at, grown * 1000 / Math.max(1, at - then)]);
  }
  return found;
}

export function points(found, now) {
  const most = Math.max(0, ...found.map(([, value]) => value));
  return found.map(([at, value]) => {
    const x = WIDTH * (1 - Math.min(1, Math.max(0, (now - at) / SPAN)));
    return `${x.toFixed(1)},${(most ? HEIGHT * (1 - value / most) : HEIGHT).toFixed(1)}`;
  }).join(" ");
}

export const short = (number) => number.toLocaleString("en", { maximumFractionDigits: 1 });

export function words(name, found) {
  if (found.length === 0) return `${name}: no data yet`;
  const numbers = found.map(([, value]) => value);
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)].map(short);
  return `${name}: ${short(numbers.at(-1))}, from ${least} to ${most} in 15 minutes`;
}

// Of two readings of one series, what both have within the span, in order.
export function merged(known, more, now) {
  const found = new Map([...known, ...more].map((sample) => [sample[0], sample]));
  return [...found.values()].filter(([at]) => at >= now - SPAN).sort((a, b) => a[0] - b[0]);
}
