// Shares of a whole by owner: now as a bar, and over the last minutes as an area that moves.

import { count, element, shape } from "./dom.js";

const SAMPLES = 120;
const HEIGHT = 40;

const sum = (counts) => Object.values(counts).reduce((all, each) => all + each, 0);

/** Owners in a fixed order, with what is free last. */
function ordered(counts) {
  const known = ["weights", "workspace", "live", "sequence", "tracking", "receiving", "cached", "exported", "tree",
    "fenced", "quarantined", "pages"];
  const rank = (owner) => (owner === "free" ? 99 : known.includes(owner) ? known.indexOf(owner) : 50);
  return Object.keys(counts).sort((one, other) => rank(one) - rank(other));
}

/** A list of owners with their colours and counts. */
export function legend(counts, say = count) {
  return element("ul", { class: "legend" }, ...ordered(counts).map((owner) =>
    element("li", {}, swatch(owner), `${owner} ${say(counts[owner])}`)));
}

function swatch(owner) {
  return shape("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" },
    shape("rect", { width: 1, height: 1, class: `owner-${owner}` }));
}

/** Shares of a whole as one bar. */
export function bar(counts, label) {
  const all = sum(counts) || 1;
  let at = 0;
  const parts = ordered(counts).map((owner) => {
    const width = (100 * counts[owner]) / all;
    const part = shape("rect", { x: at, width, height: 10, class: `owner-${owner}` },
      shape("title", { text: owner }));
    at += width;
    return part;
  });
  return shape("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img",
    "aria-label": label }, ...parts);
}

/** How what is used moved, by owner: `add` takes the counts of now, `node` shows the last two minutes. */
export class History {
  constructor(title) {
    this.samples = [];
    this.title = title;
    this.area = shape("svg", { class: "history", viewBox: `0 0 ${SAMPLES - 1} ${HEIGHT}`,
      preserveAspectRatio: "none", role: "img" });
    this.scale = element("small");
    this.owners = element("div");
    this.node = element("div", {},
      element("div", { class: "row" }, element("h3", { text: title }), this.scale), this.area, this.owners);
    this.node.hidden = true;
  }

  add(counts) {
    this.node.hidden = Object.keys(counts).length === 0;
    if (this.node.hidden) return;
    this.samples.push(counts);
    if (this.samples.length > SAMPLES) this.samples.shift();
    const all = sum(counts);
    // On a fixed scale, a full arena looks full and an empty one empty.
    const owners = ordered(counts);
    this.scale.textContent = `of ${count(all)}, last two minutes`;
    this.area.setAttribute("aria-label",
      `${this.title}: ${owners.map((owner) => `${owner} ${counts[owner]}`).join(", ")}`);
    this.area.replaceChildren(...this.#areas(owners.filter((owner) => owner !== "free"), all));
    this.owners.replaceChildren(legend(counts));
  }

  #areas(owners, top) {
    const from = SAMPLES - this.samples.length;
    const samples = this.samples.length > 1 ? this.samples : [this.samples[0], this.samples[0]];
    let below = samples.map(() => 0);
    return owners.map((owner) => {
      const above = below.map((base, at) => base + (samples[at][owner] ?? 0));
      const point = (used, at) => `${Math.min(from + at, SAMPLES - 1)},${(HEIGHT * (1 - used / top)).toFixed(3)}`;
      const points = [...above.map(point), ...below.map(point).reverse()];
      below = above;
      return shape("polygon", { points: points.join(" "), class: `owner-${owner}` });
    });
  }
}
