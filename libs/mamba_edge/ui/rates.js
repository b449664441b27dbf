// Rates and means of the last ten seconds, from counters that the server has counted since it started.

const SECONDS = 10;

export class Rates {
  constructor() {
    this.samples = [];
  }

  /** Keep the counters of now; `at` in seconds. A counter that falls belongs to a server that has started anew. */
  add(at, counters) {
    const last = this.samples.at(-1);
    if (last && Object.keys(counters).some((name) => (counters[name] ?? 0) < (last.counters[name] ?? 0))) {
      this.samples = [];
    }
    this.samples.push({ at, counters });
    while (this.samples.length > 2 && at - this.samples[1].at >= SECONDS) this.samples.shift();
  }

  #grown(name) {
    const [first, last] = [this.samples[0]?.counters[name], this.samples.at(-1)?.counters[name]];
    return first === undefined || first === null || last === undefined || last === null ? null : last - first;
  }

  /** How much a counter grows in a second; null as long as nothing is known. */
  perSecond(name) {
    const seconds = this.samples.length > 1 ? this.samples.at(-1).at - this.samples[0].at : 0;
    const grown = this.#grown(name);
    return seconds > 0 && grown !== null ? grown / seconds : null;
  }

  /** The mean of what was summed, for each event that was counted; null without an event. */
  mean(sum, events) {
    const [grown, times] = [this.#grown(sum), this.#grown(events)];
    return grown !== null && times ? grown / times : null;
  }
}
