// Markdown of answers as elements. Text is set as text, and only http(s) addresses become links.

import { element } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const COLUMNS = /^ *\|? *:?-+:? *(\| *:?-+:? *)*\|? *$/;
const INLINE = /(`+)(.+?)\1(?!`)|\*\*(\S(?:.*?\S)?)\*\*|(?<!\w)__(\S(?:.*?\S)?)__(?!\w)|\*(\S(?:[^*]*?\S)?)\*|(?<!\w)_(\S(?:[^_]*?\S)?)_(?!\w)|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|\\([\\`*_{}[\]()#+.!|>-])/;
const DEEPEST = 8;

/** The elements that show a text, which may still be growing: a block of code without its end is shown, too. */
export function markdown(text, depth = 0) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    const [block, next] = lines[at].trim() ? blockAt(lines, at, depth) : [null, at + 1];
    if (block) blocks.push(block);
    at = next;
  }
  return blocks;
}

/** The block that begins at a line, and the number of the line behind it. */
function blockAt(lines, at, depth) {
  const fence = FENCE.exec(lines[at]);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(lines[at]);
  // The page has headings of its own, so those of an answer begin below them.
  if (heading) return [element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])), at + 1];
  if (RULE.test(lines[at])) return [element("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(lines[at])) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(lines[at])) return list(lines, at, depth);
  if (lines[at].includes("|") && COLUMNS.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) return grid(lines, at);
  return paragraph(lines, at, depth);
}

function code(lines, at, [, marks, language]) {
  const end = lines.findIndex((line, number) => number > at && line.trim().startsWith(marks));
  const text = lines.slice(at + 1, end < 0 ? undefined : end).join("\n");
  const copy = element("button", { type: "button", text: "Copy" });
  const code = element("code", { text });
  copy.addEventListener("click", async () => {
    copy.textContent = (await copied(code)) ? "Copied" : "Select the text to copy it";
  });
  const block = element("figure", { class: "code" },
    element("figcaption", {}, element("span", { text: language }), copy), element("pre", { tabindex: "0" }, code));
  return [block, end < 0 ? lines.length : end + 1];
}

/** Copy the text of an element; returns whether it could be done. */
async function copied(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch { // browsers offer the clipboard to secure addresses only
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, "")).join("\n");
  return [element("blockquote", {}, ...markdown(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const [, margin, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const shown = element(ordered ? "ol" : "ul", ordered && parseInt(mark, 10) !== 1 ? { start: parseInt(mark, 10) } : {});
  let next = at;
  for (let item = ITEM.exec(lines[next] ?? ""); item; item = ITEM.exec(lines[next] ?? "")) {
    if (item[1].length !== margin.length || /\d/.test(item[2]) !== ordered) break;
    const within = item[1].length + item[2].length + Math.min(item[3].length || 1, 4);
    const inner = [lines[next].slice(within)];
    next += 1;
    while (next < lines.length && belongs(lines, next, item[1].length)) inner.push(lines[next++].replace(new RegExp(`^ {0,${within}}`), ""));
    shown.append(element("li", {}, ...unwrapped(markdown(inner.join("\n"), depth + 1))));
  }
  return [shown, next];
}

/** Whether a line goes on with an item of a list whose mark has this margin. */
function belongs(lines, at, margin) {
  const indent = (line) => line.length - line.trimStart().length;
  if (!lines[at].trim()) return indent(lines[at + 1] ?? "") > margin && (lines[at + 1] ?? "").trim() !== "";
  if (indent(lines[at]) > margin) return true;
  return lines[at - 1].trim() !== "" && !ITEM.test(lines[at]) && !FENCE.test(lines[at]) && !HEADING.test(lines[at]);
}

/** The blocks of an item; a single paragraph needs no element of its own. */
function unwrapped(blocks) {
  const [first, ...others] = blocks;
  return first?.tagName === "P" ? [...first.childNodes, ...others] : blocks;
}

function grid(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const row = (kind, line) => element("tr", {}, ...cells(line).map((cell) => element(kind, {}, ...inline(cell))));
  const shown = element("table", {}, element("thead", {}, row("th", lines[at])),
    element("tbody", {}, ...lines.slice(at + 2, end).map((line) => row("td", line))));
  return [element("div", { class: "scroll" }, shown), end];
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !FENCE.test(lines[end]) && !HEADING.test(lines[end])
    && !RULE.test(lines[end]) && (depth >= DEEPEST || !(QUOTE.test(lines[end]) || ITEM.test(lines[end])))) end += 1;
  return [element("p", {}, ...inline(lines.slice(at, end).join("\n"))), end];
}

/** Text with emphasis, code and links as nodes. */
function inline(text) {
  const nodes = [];
  let rest = text;
  for (let match = INLINE.exec(rest); match; match = INLINE.exec(rest)) {
    const [whole, , literal, strong, bold, emphasis, italic, words, address, escaped] = match;
    nodes.push(rest.slice(0, match.index));
    if (literal !== undefined) nodes.push(element("code", { text: literal.trim() || literal }));
    else if (strong ?? bold) nodes.push(element("b", {}, ...inline(strong ?? bold)));
    else if (emphasis ?? italic) nodes.push(element("em", {}, ...inline(emphasis ?? italic)));
    else if (address) nodes.push(element("a", { href: address, rel: "noopener noreferrer", target: "_blank" }, ...inline(words)));
    else nodes.push(escaped);
    rest = rest.slice(match.index + whole.length);
  }
  nodes.push(rest);
  return nodes.filter((node) => node !== "");
}
