// A conversation that streams, and says of each answer how much of its prompt was resumed.

import { byId, count, element, percent } from "./dom.js";
import { markdown } from "./markdown.js";
import { ask, events } from "./server.js";

/** Numbers of the form that a request carries where they are filled in. */
const PARAMETERS = ["temperature", "top_p", "max_tokens", "seed"];

export class Chat {
  constructor() {
    this.messages = [];
    this.running = null;
    this.loading = false;
    this.log = byId("chat-log");
    this.text = byId("chat-text");
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    // Enter in one of its fields would open the page anew.
    byId("chat-options").addEventListener("submit", (event) => event.preventDefault());
    byId("chat-stop").addEventListener("click", () => this.running?.abort());
    byId("chat-new").addEventListener("click", () => {
      this.running?.abort();
      this.messages = [];
      this.log.replaceChildren();
      this.text.focus();
    });
  }

  /** Say whether a message can be sent: nothing answers while the model is loaded. */
  ready(ready) {
    this.loading = !ready;
    byId("chat-send").disabled = this.loading || this.running !== null;
  }

  /** Offer these models. */
  models(names) {
    const select = byId("model");
    const offered = [...select.options].map((option) => option.value);
    if (JSON.stringify(offered) === JSON.stringify(names)) return;
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => element("option", { text: name, value: name })));
    if (names.includes(chosen)) select.value = chosen;
  }

  async #send() {
    const asked = this.text.value.trim();
    if (!asked || this.running || this.loading) return;
    const options = byId("chat-options");
    if (!options.checkValidity()) {
      options.closest("details").open = true;
      options.reportValidity();
      return;
    }
    const messages = this.messages;
    messages.push({ role: "user", content: asked });
    this.text.value = "";
    this.log.append(turn("user", asked));
    const shown = element("div", { class: "turn assistant" }, element("div", { class: "said" }));
    this.log.append(shown);
    this.running = new AbortController();
    this.#busy(true);
    try {
      messages.push(await this.#answer(messages, shown, this.running.signal));
    } catch (error) {
      messages.pop();
      const stopped = error.name === "AbortError";
      shown.append(element("small", stopped ? { text: "stopped" } : { class: "failed", text: error.message }));
      // What was asked is not lost.
      if (!stopped && !this.text.value) this.text.value = asked;
    }
    this.running = null;
    this.#busy(false);
    this.#follow();
  }

  async #answer(messages, shown, signal) {
    const begin = performance.now();
    const said = shown.querySelector(".said");
    const answer = { role: "assistant", content: "" };
    let thoughts = null;
    let frame = 0;
    let first = null;
    let usage = null;
    const draw = () => {
      cancelAnimationFrame(frame);
      frame = 0;
      said.replaceChildren(...(byId("plain").checked ? [element("p", { text: answer.content })] : markdown(answer.content)));
      this.#follow();
    };
    const system = byId("system").value.trim();
    const body = {
      model: byId("model").value, stream: true, stream_options: { include_usage: true }, ...parameters(),
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    };
    try {
      for await (const chunk of events(await ask("v1/chat/completions", { body, signal }))) {
        const { content, reasoning_content: thought } = chunk.choices[0]?.delta ?? {};
        if (content || thought) first ??= performance.now() - begin;
        if (thought) {
          thoughts ??= shown.insertBefore(element("p", { class: "thoughts" }), said);
          thoughts.textContent += thought;
          this.#follow();
        }
        if (content) {
          answer.content += content;
          frame ||= requestAnimationFrame(draw); // many words may come within one picture
        }
        usage = chunk.usage ?? usage;
      }
    } finally {
      draw();
    }
    shown.append(element("small", {}, ...costs(usage, first)));
    if (thoughts) answer.reasoning_content = thoughts.textContent;
    return answer;
  }

  #busy(busy) {
    byId("chat-send").disabled = busy;
    byId("chat-stop").disabled = !busy;
  }

  #follow() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}

function turn(role, text) {
  return element("div", { class: `turn ${role}` }, element("p", { text }));
}

/** What the form says of the next request; an empty field leaves the choice to the server. */
function parameters() {
  const given = PARAMETERS.map((name) => [name, byId(name).value]).filter(([, value]) => value !== "");
  return Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
}

function costs(usage, first) {
  const parts = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const share = `${count(cached)} of ${count(usage.prompt_tokens)} prompt tokens resumed`;
    parts.push(cached ? element("strong", { text: share }) : share,
      ` (${percent(cached, usage.prompt_tokens)}), ${count(usage.completion_tokens)} generated`);
  }
  if (first !== null) parts.push(`, first token ${Math.round(first)} ms`);
  return parts;
}
