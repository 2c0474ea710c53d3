// The experiment: a long prompt is sent while streams run. The longest time that one of them stood still is shown, before
// the prompt and while it was read, beside a recorded run of this server without chunks.

import { call, engineRequestOf, stream } from "./api.js";
import { announce, byId } from "./dom.js";
import { count } from "./gaps.js";
import { ms } from "./pace.js";

/** The prompt is as long as is read in about these seconds, within limits. A first prompt, of about a chunk, tells. */
const SECONDS = 10;
const LEAST_TOKENS = 500;
const MOST_TOKENS = 4000;
const FIRST_TOKENS = 128;
/** Room for the answer, and for what the server adds. */
const ROOM = 64;
const COMPANIONS = 3;
const COMPANION_TOKENS = 2000;
/** Tokens of each companion before the prompt is sent. */
const WARM = 8;
const STREAMING = 2e6;
/** The streams are watched for so long before the prompt is sent; for longer until one of them got a token. */
const BEFORE_MS = 2000;
const LONGEST_BEFORE_MS = 10_000;
/** Streams whose tokens came further apart before the prompt were slow already, in microseconds. */
const SLOW = 200_000;
/** A stream that stands still for longer looks as if it had ended, in microseconds. */
const LOOKS_ENDED = 500_000;
const LOOK_MS = 50;
/** Time for the report of the prompt's first token to come, and for the streams' next tokens behind it. */
const REPORT_MS = 5000;
const SETTLE_MS = 700;
const WORDS = "The miller opened the sluice at dawn, and the water ran past the wheel, the mill and the garden. ";

export class Experiment {
  /** `model` returns the model that is served, `live` is the live view, `onStart` starts what is shown beside. */
  constructor(model, live, onStart) {
    this.model = model;
    this.live = live;
    this.onStart = onStart;
    this.button = byId("send-long");
    this.said = byId("long-result");
    this.button.addEventListener("click", () => this.run());
  }

  async run() {
    if (this.button.getAttribute("aria-disabled") === "true") return;
    this.button.setAttribute("aria-disabled", "true");
    const ending = new AbortController();
    try {
      if (this.live.state !== "live") throw new Error("the trace is needed for this, and it is not connected");
      await this.measure(ending.signal);
    } catch (error) {
      this.say(`It could not be done: ${error.message}`);
    } finally {
      ending.abort();
      this.button.removeAttribute("aria-disabled");
    }
  }

  async measure(signal) {
    const { name, longest } = this.model();
    const response = await call("tokenize", { body: { model: name, prompt: WORDS, add_special_tokens: false } });
    const ids = (await response.json()).tokens;
    // No two of these prompts begin alike, or the second one would be found in the cache.
    const promptOf = (length) => Array.from({ length }, () => ids[Math.floor(Math.random() * ids.length)]);
    const { run } = this.live;
    const isStreaming = run.open.some((each) => each.lastToken > this.live.now() - STREAMING);
    if (!isStreaming) {
      this.say(`Starting ${COMPANIONS} streams beside it`);
      await Promise.all(Array.from({ length: COMPANIONS }, () => this.companion(name, longest, signal)));
    }
    this.say("Measuring how fast prompts are read here");
    const [first] = await this.sendLong(name, promptOf(Math.min(FIRST_TOKENS, longest - ROOM)), signal);
    const tokens = Math.min(lengthFor(first), longest - ROOM);
    const watched = run.watchGaps();
    try {
      this.say("Watching the streams before the prompt is sent");
      await pause(BEFORE_MS);
      await until(() => watched.length > 0, LONGEST_BEFORE_MS - BEFORE_MS);
      this.say(`Sending a prompt of ${count(tokens, "token")}`);
      this.onStart();
      const [took, id] = await this.sendLong(name, promptOf(tokens), signal);
      await until(() => run.requests.get(id)?.firstToken != null, REPORT_MS);
      await pause(SETTLE_MS);
      const isWhole = this.live.state === "live" && run.isWatching(watched);
      if (!isWhole) throw new Error("the trace was interrupted meanwhile; it is not read while this page is hidden");
      const request = run.requests.get(id);
      this.say(`${readingOf(tokens, took, request)} ${verdictOf(watched, request)}`);
    } finally {
      run.unwatchGaps(watched);
    }
  }

  /** Return after how many milliseconds the first token came, and the request's number at the engine. */
  async sendLong(name, prompt, signal) {
    const began = performance.now();
    let id = null;
    const asked = { model: name, prompt, max_tokens: 4, ignore_eos: true };
    const onNumber = (number) => {
      id = number;
    };
    for await (const _ of this.stream(asked, signal, onNumber)) break;
    return [performance.now() - began, id];
  }

  /** Start a stream that is not shown, and wait until it runs. */
  async companion(name, longest, signal) {
    const tokens = Math.min(COMPANION_TOKENS, longest - ROOM);
    const asked = { model: name, prompt: `${Math.random()} ${WORDS}`, max_tokens: tokens, ignore_eos: true };
    const running = this.stream(asked, signal);
    for (let came = 0; came < WARM; came += 1) await running.next();
    this.drain(running);
  }

  async drain(running) {
    try {
      for await (const _ of running);
    } catch {
      // It is stopped when the experiment is over.
    }
  }

  /** Yield the events of a completion of one's own. */
  async *stream(asked, signal, onNumber = () => {}) {
    const named = this.live.expectOwn();
    const onResponse = (response) => {
      const id = engineRequestOf(response);
      named(id);
      onNumber(id);
    };
    try {
      yield* stream("v1/completions", asked, { signal, onResponse });
    } finally {
      named(null);
    }
  }

  say(text) {
    this.said.textContent = text;
    announce(text);
  }
}

/** Return the length of a prompt that is read in `SECONDS`, if the first one took some milliseconds. */
export function lengthFor(milliseconds) {
  const tokens = (FIRST_TOKENS * SECONDS * 1000) / milliseconds;
  return Math.min(MOST_TOKENS, Math.max(LEAST_TOKENS, Math.round(tokens / 100) * 100));
}

/** Return in how much time and how many chunks a prompt was read, in words. */
function readingOf(tokens, took, request) {
  const chunks = request?.chunks ?? 0;
  const inChunks = chunks > 0 ? `, in ${count(chunks, "chunk")}` : "";
  return `${count(tokens, "token")} were read in ${ms(took)}${inChunks}.`;
}

/**
 * Return how long streams stood still at most, before a prompt came and while it was read, in words.
 *
 * `watched` has the times between their tokens, `request` is the prompt's; undefined: the trace did not tell of it.
 */
export function verdictOf(watched, request) {
  const arrived = request?.arrived ?? 0;
  const read = request?.firstToken ?? Infinity;
  const others = watched.filter((each) => each.request !== request && each.from < read);
  if (others.length === 0) return "No stream ran beside it.";
  const before = longestOf(others.filter(({ to }) => to <= arrived));
  const meanwhile = longestOf(others.filter(({ to }) => to > arrived));
  const parts = [
    before === 0 ? "" : `before the prompt up to ${ms(before / 1000)}`,
    meanwhile === 0 ? "" : `while it was read up to ${ms(meanwhile / 1000)}`,
  ];
  const slow = "The machine is busy, or slow for this model: the streams were slow before the prompt, too.";
  const stood = `The longest that a stream stood still: ${parts.filter((each) => each).join(", ")}.`;
  if (before > SLOW) return `${stood} ${slow}`;
  const shorter = "That was a chunk of the prompt. The option --itl-target auto lets the server cut shorter ones.";
  return meanwhile > LOOKS_ENDED ? `${stood} ${shorter}` : stood;
}

function longestOf(gaps) {
  return gaps.reduce((most, { from, to }) => Math.max(most, to - from), 0);
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** Wait until something holds, but not longer than some milliseconds. */
async function until(holds, milliseconds) {
  const end = performance.now() + milliseconds;
  while (!holds() && performance.now() < end) await pause(LOOK_MS);
}
