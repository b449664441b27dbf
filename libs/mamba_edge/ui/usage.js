// The panel of use: who used what of the engines, and what it cost, as the gateway's ledger says.

import { byId, count, table } from "./dom.js";
import { ask } from "./server.js";

const EVERY = 10000;
/** Lines of the table: a ledger can have hundreds of keys, and the engines below are what is looked at first. */
const MOST = 6;
const DAY = 86400000;
const KINDS = { key: "key", model: "deployment", adapter: "adapter", day: "day" };

let timer = 0;
let shown = false;

/** Show the use that a gateway has in its ledger, or nothing: engines have none. */
export function showUsage(gateway) {
  if (gateway === shown) return;
  shown = gateway;
  byId("usage").hidden = !gateway;
  if (gateway) look();
  else clearTimeout(timer);
}

/** Read the ledger now. The page calls it again when somebody looks at it. */
export async function look() {
  clearTimeout(timer);
  if (!shown || document.hidden) return;
  const by = byId("usage-by").value;
  const days = Number(byId("usage-days").value);
  const since = days > 1 ? `&since=${new Date(Date.now() - (days - 1) * DAY).toISOString().slice(0, 10)}` : "";
  let content;
  try {
    content = lines(by, await (await ask(`v1/usage?by=${by}${since}`)).json());
  } catch (error) {
    if (error.status === 404) return showUsage(false);
    content = [error.message];
  }
  // What was chosen meanwhile has an answer of its own.
  if (by !== byId("usage-by").value || days !== Number(byId("usage-days").value)) return;
  byId("usage-table").replaceChildren(...content);
  clearTimeout(timer);
  timer = setTimeout(look, EVERY);
}

function lines(by, report) {
  if (!report.data.length) return ["No request has ended."];
  // All lines have as many digits as the smallest sum needs to be seen.
  const digits = report.total.cost < 10 ? 4 : 2;
  const money = report.currency
    ? new Intl.NumberFormat("en", { style: "currency", currency: report.currency,
      minimumFractionDigits: digits, maximumFractionDigits: digits })
    : null;
  const row = (name, line) => [name, count(line.requests), tokens(line.prompt_tokens), tokens(line.resumed_tokens),
    tokens(line.output_tokens), time(line.device_seconds),
    ...(money ? [money.format(line.cost), money.format(line.saved_cost)] : [])];
  const data = by === "day" ? report.data.slice(-MOST) : report.data.slice(0, MOST);
  const rows = data.map((line) => row(line.name || (by === "adapter" ? "base model" : "–"), line));
  const left = report.data.length - data.length;
  rows.push(row(left ? `all, ${left} not shown` : "all", report.total));
  const names = [KINDS[by], "requests", "prompt", "resumed", "output", "device", ...(money ? ["cost", "saved"] : [])];
  const days = report.since === report.until ? report.since : `${report.since} to ${report.until}`;
  return [table(`Tokens, device time${money ? ", cost" : ""}; ${days} (UTC)`, names, rows)];
}

const short = new Intl.NumberFormat("en", { notation: "compact", minimumSignificantDigits: 3, maximumSignificantDigits: 3 });

/** A number of tokens; of millions the first digits. */
const tokens = (value) => (value < 100000 ? count(value) : short.format(value));

/** A time of devices, which goes into weeks. */
function time(seconds) {
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return seconds < 7200 ? `${(seconds / 60).toFixed(1)} min` : `${count(Number((seconds / 3600).toFixed(1)))} h`;
}

for (const name of ["usage-by", "usage-days"]) byId(name).addEventListener("change", look);
