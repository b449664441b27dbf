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
