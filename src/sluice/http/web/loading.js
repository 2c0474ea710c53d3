// A server whose model still loads: what it says of that, and calls that wait for it.

import { Refused, stream } from "./api.js";

export const RETRY_MS = 1000;

/** Return what a server says that cannot serve yet; null: an error means something else. */
export function notReady(error) {
  if (!(error instanceof Refused) || error.status !== 503 || error.code !== "service_unavailable") return null;
  return error.message.replace("cannot serve requests: ", "").replace("the model is loading: ", "loading: ");
}

/** Yield the events of a chat as `stream` does. As long as the server cannot serve yet, ask again: `answer.begin()` is
 * called before each attempt, and `answer.wait()` with what the server says. */
export async function* streamWhenReady(path, body, options, answer) {
  for (;;) {
    answer.begin();
    try {
      yield* stream(path, body, options);
      return;
    } catch (error) {
      const why = notReady(error);
      if (why === null) throw error;
      answer.wait(why);
    }
    await pause(options.signal);
  }
}

function pause(signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    setTimeout(resolve, RETRY_MS);
  });
}
