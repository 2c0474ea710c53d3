// Calls of the server. Addresses are relative, so that the page works below another path of a proxy; the API key goes
// into a header, never into an address.

import { askForKey } from "./key.js";
import { read } from "./storage.js";

/** An answer other than 2xx, with what the server says about it. */
export class Refused extends Error {
  constructor(status, message, retryAfter = null, code = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
    this.code = code;
  }
}

/** Return the answer to a request. Asks for a key if one is needed, as often as the one given is wrong. */
export async function call(path, { body = null, signal = undefined, asks = true } = {}) {
  for (;;) {
    const key = read("key", "");
    const response = await fetch(path, {
      method: body === null ? "GET" : "POST",
      headers: { ...keyHeader(key), ...(body === null ? {} : { "Content-Type": "application/json" }) },
      body: body === null ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      signal,
    });
    if (response.ok) return response;
    const refused = await refusal(response);
    if (response.status !== 401 || !asks) throw refused;
    if (read("key", "") !== key) continue; // another call has asked meanwhile
    if (!(await askForKey(refused.message))) throw refused;
  }
}

function keyHeader(key) {
  return key === "" ? {} : { Authorization: `Bearer ${key}` };
}

async function refusal(response) {
  const text = await response.text();
  let message = text.slice(0, 500);
  let code = null;
  try {
    ({ message, code } = JSON.parse(text).error);
  } catch {
    // The answer of a proxy need not be ours.
  }
  const retryAfter = response.headers.get("retry-after");
  return new Refused(response.status, message || `status ${response.status}`, retryAfter, code);
}

/** Return a request's number at the engine, which the trace knows it by; null if the answer does not name it. */
export function engineRequestOf(response) {
  const id = response.headers.get("x-sluice-engine-request");
  return id === null ? null : Number(id);
}

/** Yield the data of each server-sent event of an answer. Comments, which keep a connection alive, are "". */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) yield part.startsWith("data: ") ? part.slice(6) : "";
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Yield the events of a call that streams, as objects. */
export async function* stream(path, body, { signal, onResponse = () => {} } = {}) {
  const response = await call(path, { body: { ...body, stream: true }, signal });
  onResponse(response);
  for await (const data of events(response)) {
    if (data === "" || data === "[DONE]") continue;
    const event = JSON.parse(data);
    if (event.error !== undefined) throw new Refused(500, event.error.message);
    yield event;
  }
}
