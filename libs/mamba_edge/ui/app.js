// The page: polls what the server says of itself while it is looked at, and shows it.

import { Chat } from "./chat.js";
import { byId, count, tiles } from "./dom.js";
import { EngineCard } from "./engine_card.js";
import { ask, useKey } from "./server.js";

const EVERY = 1000;
const SLOWEST = 10000;

const chat = new Chat();
const cards = new Map();
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
  state(status.status, status.status === "ready");
  const gateway = status.gateway;
  byId("gateway").hidden = !gateway;
  if (gateway) {
    const ready = status.engines.filter((engine) => engine.status === "ready").length;
    tiles(byId("gateway"), [
      ["replicas ready", `${ready} of ${status.engines.length}`], ["in flight", count(gateway.in_flight)],
      ["queued", count(gateway.queued)], ["held", count(gateway.held), "wait for an engine"],
    ]);
  }
  const at = performance.now() / 1000;
  const names = status.engines.map((engine) => engine.name);
  for (const [name, card] of cards) {
    if (names.includes(name)) continue;
    card.node.remove();
    cards.delete(name);
  }
  for (const engine of status.engines) {
    if (!cards.has(engine.name)) cards.set(engine.name, new EngineCard());
    const card = cards.get(engine.name);
    card.update(engine, at);
    if (!card.node.isConnected) byId("engines").append(card.node);
  }
  chat.models([...new Set(status.engines.map((engine) => engine.model).filter(Boolean))].sort());
}

function fail(error) {
  byId("serving").classList.add("stale");
  if (error.status === 401) {
    const form = byId("key-form");
    trouble(form.hidden ? "" : error.message);
    state("key needed", false);
    form.hidden = false;
    byId("key").focus();
    return;
  }
  state("away", false);
  trouble(`${error.message}; asking again. What is shown is from before.`);
}

function state(word, good) {
  const pill = byId("state");
  if (pill.textContent !== word) pill.textContent = word; // said aloud when it changes
  pill.className = `pill ${good ? "good" : "bad"}`;
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

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));
poll();
