// The page: polls what the server says of itself while it is looked at, and shows it.

import { Chat } from "./chat.js";
import { byId, count, duration, rate, table, tiles, tone } from "./dom.js";
import { EngineCard } from "./engine_card.js";
import { Rates } from "./rates.js";
import { ask, useKey } from "./server.js";
import { look, showUsage } from "./usage.js";

const EVERY = 1000;
const SLOWEST = 10000;
/** With more engines than these, each shows its numbers only, until it is opened. */
const FEW = 3;

const chat = new Chat();
const cards = new Map();
const traffic = new Map();
const NOTHING = { requests: 0, failed: 0, refused: 0, first_bytes: 0, first_byte_seconds: 0 };
let looked = 0;
let timer = 0;
let failures = 0;
let polling = false;

async function poll() {
  clearTimeout(timer);
  if (document.hidden || polling) return;
  polling = true;
  try {
    const answer = await ask("v1/status");
    show(await answer.json());
    failures = 0;
  } catch (error) {
    failures += 1;
    fail(error);
  }
  polling = false;
  // With a key missing there is nothing to come: the form goes on.
  if (byId("key-form").hidden) timer = setTimeout(poll, Math.min(SLOWEST, EVERY * 2 ** Math.min(failures, 4)));
}

function show(status) {
  trouble("");
  byId("key-form").hidden = true;
  byId("serving").classList.remove("stale");
  byId("component").textContent = status.component;
  byId("version").textContent = status.version;
  byId("reason").textContent = status.reason;
  state(status.status, tone(status.status));
  const gateway = status.gateway;
  byId("gateway").hidden = !gateway;
  showUsage(Boolean(gateway));
  if (gateway) {
    const ready = status.engines.filter((engine) => engine.status === "ready").length;
    tiles(byId("gateway"), [
      ["engines available", `${ready} of ${status.engines.length}`], ["in flight", count(gateway.in_flight)],
      ["queued", count(gateway.queued)], ["held", count(gateway.held), "waiting for an engine"],
    ]);
    showTraffic(gateway.traffic ?? [], status.engines);
  }
  const at = performance.now() / 1000;
  const names = status.engines.map((engine) => engine.name);
  for (const [name, card] of cards) {
    if (names.includes(name)) continue;
    card.node.remove();
    cards.delete(name);
  }
  byId("engines").classList.toggle("many", names.length > FEW);
  for (const engine of status.engines) {
    if (!cards.has(engine.name)) cards.set(engine.name, new EngineCard());
    const card = cards.get(engine.name);
    card.update(engine, at);
    if (!card.node.isConnected) byId("engines").append(card.node);
  }
  const models = [...new Set(status.engines.map((engine) => engine.model).filter(Boolean))];
  document.title = ["ready", ...models.slice(0, 1)].join(" · ").replace("ready", status.status);
  chat.ready(status.status !== "loading");
  chat.models([...new Set(status.engines.map((engine) => engine.model).filter(Boolean))].sort());
}

/** Requests by served model, which is a deployment of its own behind a gateway of several. */
function showTraffic(models, engines) {
  const at = performance.now() / 1000;
  for (const name of traffic.keys()) if (!models.some(({ model }) => model === name)) traffic.delete(name);
  const rows = models.map((each) => {
    const own = engines.filter((engine) => engine.model === each.model);
    const tokens = own.reduce((sum, engine) => sum + (engine.generated_tokens ?? 0), 0);
    if (!traffic.has(each.model)) {
      traffic.set(each.model, new Rates());
      // A model appears with its first request, which came after the last look.
      if (looked) traffic.get(each.model).add(looked, { ...NOTHING, tokens });
    }
    const rates = traffic.get(each.model);
    rates.add(at, { ...each, tokens });
    const waiting = own.reduce((sum, engine) => sum + (engine.waiting ?? 0), 0);
    return [each.model, rate(rates.perSecond("requests")), rate(rates.perSecond("failed")),
      rate(rates.perSecond("refused")), duration(rates.mean("first_byte_seconds", "first_bytes")),
      rate(rates.perSecond("tokens")), count(waiting)];
  });
  looked = at;
  byId("traffic").hidden = !rows.length;
  byId("traffic").replaceChildren(table("Traffic by deployment, last ten seconds",
    ["model", "requests\u200b/s", "errors\u200b/s", "refused\u200b/s", "first byte", "tokens\u200b/s", "queue"], rows));
}

function fail(error) {
  byId("serving").classList.add("stale");
  if (error.status === 401) {
    const form = byId("key-form");
    trouble(form.hidden ? "" : error.message);
    state("key needed", "wait");
    form.hidden = false;
    byId("key").focus();
    return;
  }
  state("away", "bad");
  document.title = "away";
  byId("reason").textContent = "";
  for (const card of cards.values()) card.outdated();
  trouble(`${error.message}, retrying. These are the last known values.`);
}

function state(word, look) {
  const pill = byId("state");
  if (pill.textContent !== word) pill.textContent = word; // said aloud when it changes
  pill.className = `pill ${look}`;
}

function trouble(text) {
  const shown = byId("trouble");
  shown.hidden = !text;
  if (shown.textContent !== text) shown.textContent = text;
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  byId("key").value = "";
  byId("key-form").hidden = true;
  poll().then(() => {
    if (byId("key-form").hidden) byId("chat-text").focus();
    else trouble("the API key is not accepted");
  });
});

const dark = matchMedia("(prefers-color-scheme: dark)");
byId("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else {
    poll();
    look();
  }
});
poll();
