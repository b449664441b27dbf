// Making and filling elements. Text is always set as text: nothing that a server says becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; `text` in the attributes is its text. */
export function element(name, { text, ...attributes } = {}, ...children) {
  return filled(document.createElement(name), text, attributes, children);
}

/** The same for a shape inside an `svg` element, or for that element. */
export function shape(name, { text, ...attributes } = {}, ...children) {
  return filled(document.createElementNS(SVG, name), text, attributes, children);
}

function filled(made, text, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

/** The element with this id, which the page has. */
export const byId = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en");

/** A count as people read it; a dash for one that is not known. */
export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** A share between 0 and 1 in percent. */
export const percent = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : "–");

/** A rate: two digits for a small one, and a dash for one that is not known. */
export function rate(value) {
  if (value === null) return "–";
  return value >= 10 || value === 0 ? count(Math.round(value)) : value.toFixed(value < 1 ? 2 : 1);
}

/** A duration given in seconds. */
export function duration(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

/** How good a phase is: what is on its way is no failure. */
export const tone = (phase) =>
  phase === "ready" ? "good" : ["loading", "restarting", "draining", "connecting"].includes(phase) ? "wait" : "bad";

/** A table with a caption; the first column is words, the others are numbers. */
export function table(caption, names, rows) {
  const cell = (name, text, at) => element(name, at ? { class: "number", text } : { text });
  return element("table", {}, element("caption", { text: caption }),
    element("thead", {}, element("tr", {}, ...names.map((name, at) => cell("th", name, at)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, at) => cell("td", text, at))))));
}

/** Bytes with a binary unit. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A row of facts: name, value, and perhaps a word more and a sentence on what it is. */
export function tiles(list, facts) {
  list.replaceChildren(
    ...facts.map(([name, value, more = "", what = ""]) =>
      element("div", what ? { title: what } : {}, element("dt", { text: name }),
        element("dd", { text: value }, ...(more ? [" ", element("small", { text: more })] : [])))));
}
