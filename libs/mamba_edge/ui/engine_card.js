// One engine: its memory by owner as it moves, hits and misses, what runs, and the plan in force.

import { bar, History, legend } from "./charts.js";
import { bytes, count, duration, element, percent, rate, table, tiles, tone } from "./dom.js";
import { Rates } from "./rates.js";

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
    this.progress = element("progress", { "aria-label": "Loading" });
    this.more = element("button", { type: "button", class: "more", "aria-expanded": "false", text: "Details" });
    this.more.addEventListener("click", () => this.#open(!this.node.classList.contains("open")));
    this.rest = element("div", { class: "rest" }, this.arena.node, this.pages.node, this.wrong, this.misses,
      this.requests, this.planned);
    this.node = element("article", { class: "panel" },
      element("div", { class: "row" }, this.name, this.state, this.more), this.about, this.progress, this.facts,
      this.rest);
    this.rates = new Rates();
    this.planText = "";
  }

  /** Show what the engine says now; `at` in seconds. */
  update(engine, at) {
    this.name.textContent = engine.name || engine.model || "engine";
    this.state.textContent = engine.status;
    this.state.className = `pill ${tone(engine.status)}`;
    this.progress.hidden = engine.status !== "loading" || !(engine.total > 1);
    if (!this.progress.hidden) [this.progress.max, this.progress.value] = [engine.total, engine.done ?? 0];
    this.facts.hidden = engine.status === "loading";
    const plan = engine.plan;
    this.about.textContent = [engine.model, plan?.strategy, plan?.stateDtype && `${plan.stateDtype} states`,
      engine.status === "ready" ? "" : loading(engine) || engine.reason].filter(Boolean).join(" · ");
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

  /** Say that what is shown is the last that was known. */
  outdated() {
    this.state.className = "pill wait";
    this.state.textContent = `last seen ${this.state.textContent.replace("last seen ", "")}`;
  }

  #open(open) {
    this.node.classList.toggle("open", open);
    this.more.setAttribute("aria-expanded", String(open));
  }

  #facts(engine, at) {
    this.rates.add(at, { tokens: engine.generated_tokens, finished: engine.finished, failed: engine.failed,
      first: engine.first_tokens, seconds: engine.first_token_seconds });
    const failures = this.rates.perSecond("failed");
    return [
      ["first token", duration(this.rates.mean("seconds", "first")), "mean of 10\u00a0s", "Time to first token"],
      ["answers", rate(this.rates.perSecond("finished")), `a second, ${failures ? rate(failures) : "0"} failed`],
      ["generated", rate(this.rates.perSecond("tokens")), "tokens/s"],
      ["running", count(engine.running), `${count(engine.waiting)} waiting`],
      ["resumed", percent(engine.cached_tokens, engine.prompt_tokens),
        `${count(engine.cached_tokens)} of ${count(engine.prompt_tokens)}`, "Prompt tokens resumed from a checkpoint"],
      ["in use by requests", engine.cache_usage === null ? "–" : percent(engine.cache_usage, 1), "the rest can be freed", "The share of the arena that not even eviction could free"],
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
  return [table("Prefix cache misses by cause", ["cause", "prompts", "share"],
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
  return [table("Requests", ["phase", "prompt", "resumed", "output", "miss", "preempted"],
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
