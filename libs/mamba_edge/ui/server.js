// What the page asks of the server that it came from. The key lives in this module and nowhere else.

let key = "";

/** Show this key from now on. */
export function useKey(given) {
  key = given;
}

/** An answer that is no success: `status` is 0 when nobody answered. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Ask; the address is relative to the page. Throws Refused, and AbortError when `signal` says so. */
export async function ask(path, { body, signal } = {}) {
  const headers = { accept: "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  const asked = { headers, signal, cache: "no-store", credentials: "omit" };
  if (body) Object.assign(asked, { method: "POST", body: JSON.stringify(body) });
  let answer;
  try {
    answer = await fetch(path, asked);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the server does not answer");
  }
  if (!answer.ok) throw new Refused(answer.status, await reason(answer));
  return answer;
}

async function reason(answer) {
  try {
    const { error } = await answer.json();
    return error.message || `the server answered ${answer.status}`;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

/** The data of each server-sent event of an answer, up to its [DONE]. Throws Refused for an error in between. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refused(0, "the answer broke off");
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue; // a comment, as a sign of life
      const found = JSON.parse(data);
      if (found.error) throw new Refused(0, found.error.message);
      yield found;
    }
  }
}
