// One engine: its memory by owner as it moves, hits and misses, what runs, and the plan in force.

import { bar, History, legend } from "./charts.js";
import { bytes, count, element, percent, tiles } from "./dom.js";

/** Whose share of the plan's bar a line of the ledger is, by words of its name. */
const SHARES = [["weights", "weights"], ["workspace", "workspace"], ["running", "live"], ["checkpoints", "cached"]];

export class EngineCard {
  constructor() {
    this.name = element("h2");
    this.state = element("span", { class: "pill" });
    this.about = element("p", { class: "dim" });
    this.facts = element("dl", { class: "tiles" });
    this.arena = new History("Arena: state slots and slabs of pages by owner");
    this.pages = new History("Attention KV pages by owner");
    this.misses = element("div");
    this.wrong = element("div", { class: "scroll" });
    this.requests = element("div", { class: "scroll" });
    this.ledger = element("div");
    this.planned = element("details", {}, element("summary", { text: "Memory plan" }), this.ledger);
    this.node = element("article", { class: "panel" },
      element("div", { class: "row" }, this.name, this.state), this.about, this.facts,
      this.arena.node, this.pages.node, this.wrong, this.misses, this.requests, this.planned);
    this.before = null;
    this.planText = "";
  }

  /** Show what the engine says now; `at` in seconds. */
  update(engine, at) {
    this.name.textContent = engine.name || engine.model || "engine";
    this.state.textContent = engine.status;
    this.state.className = `pill ${engine.status === "ready" ? "good" : "bad"}`;
    const plan = engine.plan;
    this.about.textContent = [engine.model, plan?.strategy, plan?.stateDtype && `${plan.stateDtype} states`,
      engine.status === "ready" ? "" : engine.reason, loading(engine)].filter(Boolean).join(" · ");
    tiles(this.facts, this.#facts(engine, at));
    this.arena.add(engine.slabs);
    this.pages.add(engine.pages);
    this.misses.replaceChildren(...misses(engine.misses));
    this.wrong.replaceChildren(...wrong(engine));
    this.requests.replaceChildren(...requests(engine.requests));
    const text = JSON.stringify(plan);
    if (text !== this.planText) this.ledger.replaceChildren(...planParts(plan));
    this.planned.hidden = !plan?.ledger;
    this.planText = text;
  }

  #facts(engine, at) {
    const speed = this.before && engine.generated_tokens !== null && at > this.before.at
      ? Math.max(0, engine.generated_tokens - this.before.tokens) / (at - this.before.at) : null;
    this.before = { at, tokens: engine.generated_tokens };
    return [
      ["running", count(engine.running), `${count(engine.waiting)} wait`],
      ["resumed", percent(engine.cached_tokens, engine.prompt_tokens),
        `${count(engine.cached_tokens)} of ${count(engine.prompt_tokens)}`, "Prompt tokens resumed from a checkpoint"],
      ["generated", speed === null ? "–" : count(Math.round(speed)), "tokens/s"],
      ["in use", engine.cache_usage === null ? "–" : percent(engine.cache_usage, 1), "of the arena", "What not even eviction could free"],
      ["checkpoints", count(engine.checkpoints)],
      ["preempted", count(engine.preemptions), engine.restarts ? `${count(engine.restarts)} restarts` : ""],
    ];
  }
}

function loading(engine) {
  return engine.total > 1 ? `${engine.stage}: ${percent(engine.done, engine.total)}` : "";
}

function misses(counts) {
  const causes = Object.entries(counts).sort((one, other) => other[1] - one[1]);
  if (!causes.length) return [];
  const all = causes.reduce((total, [, each]) => total + each, 0);
  return [table("Prompts that resumed less than they could have, by cause", ["cause", "prompts", "share"],
    causes.map(([cause, each]) => [cause, count(each), percent(each, all)]))];
}

/** What audits found: whether it has ended speculation, and the checkpoints that were withdrawn. */
function wrong(engine) {
  const parts = [];
  if (engine.speculation && engine.speculation !== "on") {
    parts.push(element("p", { class: "bad", text: `Speculation is off: ${engine.speculation}` }));
  }
  if (engine.quarantined?.length) {
    parts.push(table("Answers that audits found wrong, and what was withdrawn",
      ["what differed", "depth", "from", "step", "computed from", "checkpoints", "drafted tokens"],
      engine.quarantined.map((each) => [each.reason, count(each.depth), each.place || each.origin,
        each.step === null ? "–" : count(each.step), each.ancestors.map(count).join(", "),
        count(each.checkpoints), count(each.accepted_drafts)])));
  }
  return parts;
}

function requests(list) {
  if (!list?.length) return [];
  return [table("What runs and waits", ["phase", "prompt", "resumed", "output", "miss", "preempted"],
    list.map((each) => [each.phase, count(each.prompt_tokens), count(each.cached_tokens),
      count(each.output_tokens), each.miss_cause, count(each.preemptions)]))];
}

function planParts(plan) {
  if (!plan?.ledger) return [];
  const counts = {};
  for (const { item, bytes: size } of plan.ledger) {
    const [, owner] = SHARES.find(([word]) => item.includes(word)) ?? ["", "free"];
    counts[owner] = (counts[owner] ?? 0) + size;
  }
  const parts = [
    element("p", { text: plan.reason }),
    bar(counts, "Shares of the memory"),
    legend(counts, bytes),
    table("Where every byte goes", ["use", "bytes", "share"],
      plan.ledger.map(({ item, bytes: size }) => [item, bytes(size), percent(size, plan.budgetBytes)])),
  ];
  if (plan.rejected?.length) {
    parts.push(element("h3", { text: "Not chosen" }), element("ul", { class: "rejected" },
      ...plan.rejected.map((each) =>
        element("li", { text: `${each.strategy}, ${each.stateDtype}: ${each.reason}` }))));
  }
  const sizes = [["down", plan.oneSizeDown], ["up", plan.oneSizeUp]].filter(([, size]) => size);
  if (sizes.length) {
    parts.push(element("h3", { text: "One GPU size down and up" }), element("ul", { class: "rejected" },
      ...sizes.map(([way, size]) => element("li", { text: `${way}, ${binary(size.memory)}: ${onSize(size)}` }))));
  }
  return parts;
}

/** What the planner would choose for a GPU of another size, or why nothing fits. */
function onSize(size) {
  if (!size.fits) return `does not fit: ${size.reason}`;
  return `${size.strategy}, ${size.stateDtype} states, ${count(size.maxRunningRequests)} at once of up to ` +
    `${count(size.maxModelLen)} tokens, ${count(size.checkpoints)} checkpoints, ${size.resumed} resumed`;
}

/** A size such as 97887Mi in the page's own words. */
function binary(size) {
  const [, number, unit] = /^(\d+)([KMGT]?)i?$/.exec(size) ?? [];
  return number ? bytes(Number(number) * 1024 ** " KMGT".indexOf(unit || " ")) : size;
}

function table(caption, names, rows) {
  const cell = (name, text, at) => element(name, at ? { class: "number", text } : { text });
  return element("table", {}, element("caption", { text: caption }),
    element("thead", {}, element("tr", {}, ...names.map((name, at) => cell("th", name, at)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, at) => cell("td", text, at))))));
}
