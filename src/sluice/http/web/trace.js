// The subscription of /v1/trace: it is renewed whenever it ends, so that it outlives the engine and the server. While the
// page is hidden there is none: it would take one of the few connections that a browser opens to a server.

import { call, events } from "./api.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;
/** The server says something every ten seconds. Without it the connection is dead, although nothing said so. */
const SILENT_MS = 25_000;
/** Why a subscription was given up. */
const HIDDEN = "hidden";

/** Reads the trace until `stop`. */
export class Trace {
  /** `onEvent` receives every event; `onState` "live", "lost", "hidden", "key" (one is needed) or "off" (there is no trace). */
  constructor(onEvent, onState) {
    this.onEvent = onEvent;
    this.onState = onState;
    this.stopping = new AbortController();
    this.reading = new AbortController();
    this.wake = () => {};
    const giveUp = () => document.hidden && this.reading.abort(HIDDEN);
    document.addEventListener("visibilitychange", giveUp, { signal: this.stopping.signal });
  }

  async start() {
    let pause = FIRST_PAUSE_MS;
    while (!this.stopping.signal.aborted) {
      if (document.hidden) {
        this.onState("hidden");
        await visibilityChange();
        continue;
      }
      try {
        await this.read(() => {
          pause = FIRST_PAUSE_MS;
        });
        this.onState("lost");
      } catch (error) {
        if (this.stopping.signal.aborted) return;
        if (error.status === undefined && this.reading.signal.reason === HIDDEN) continue;
        this.onState(error.status === 401 ? "key" : error.status === 404 ? "off" : "lost");
        if (error.status === 404) return;
        if (error.status === 401) pause = null; // until a key is given: the dialog was closed without one
      }
      await this.rest(pause);
      pause = pause === null ? FIRST_PAUSE_MS : Math.min(2 * pause, LONGEST_PAUSE_MS);
    }
  }

  /** Read one subscription to its end. */
  async read(onFirst) {
    const reading = new AbortController();
    this.reading = reading;
    let timer = 0;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => reading.abort(), SILENT_MS);
    };
    heard();
    try {
      const signal = AbortSignal.any([reading.signal, this.stopping.signal]);
      const response = await call("v1/trace", { signal });
      for await (const data of events(response)) {
        heard();
        if (data === "") continue;
        const event = JSON.parse(data);
        this.onEvent(event);
        if (event.kind === "hello") {
          onFirst();
          this.onState("live");
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }

  /** Wait for a while, or until `retry` if that is null. */
  rest(milliseconds) {
    return new Promise((resolve) => {
      const timer = milliseconds === null ? 0 : setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Try again now: a key was given, say. */
  retry() {
    this.wake();
  }

  stop() {
    this.stopping.abort();
    this.wake();
  }
}

/** Wait until the page is shown or hidden. */
function visibilityChange() {
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
