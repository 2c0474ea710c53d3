// The requests and steps of a trace, as its events tell them: of the live one, or of one that was recorded.
// Times are microseconds of the server.

import { causesOf } from "./gaps.js";
import { median } from "./pace.js";

/** A stream that stands still for less is not seen to. */
const LEAST_GAP = 100_000;
/** A gap is longer than this many usual ones of the same stream. */
const UNUSUAL = 3;
const RECENT = 32;
const MOST_STEPS = 6000;
const MOST_GAPS = 200;
const MOST_ENDED = 200;

/** Return how many tokens a step brought a request, whose row in it samples. */
export function tokensOf(step, id) {
  return step.failed ? 0 : (step.counts[id] ?? 1);
}

/** What is known of one request. */
class TracedRequest {
  constructor(id, arrived, promptTokens) {
    this.id = id;
    this.arrived = arrived;
    this.promptTokens = promptTokens;
    this.outputTokens = 0;
    this.cachedTokens = null;
    this.chunks = 0;
    this.admittedAt = null;
    this.preemptions = 0;
    this.firstToken = null;
    this.lastToken = null;
    this.lastSeen = arrived;
    this.longestGap = 0;
    this.recent = [];
    this.end = null;
    this.isOwn = false;
    /** Tokens of it came while nobody looked, so it is not known when the first one did. */
    this.isMissed = false;
    this.lane = null;
  }

  /** It has neither been read nor continued. */
  get isWaiting() {
    return this.end === null && this.admittedAt === null && this.outputTokens === 0;
  }

  /** The usual time between two tokens; null before there are two. */
  get itl() {
    return this.recent.length === 0 ? null : median(this.recent);
  }

  get state() {
    if (this.end !== null) return this.end.reason;
    if (this.isWaiting) return "waits";
    return this.outputTokens === 0 ? "its prompt is read" : "streams";
  }
}

/** Folds events. `onMark` receives what can be drawn: `{kind, request, from, to, ...}`. */
export class Run {
  constructor(onMark = () => {}) {
    this.onMark = onMark;
    this.requests = new Map();
    this.own = new Set();
    /** Requests that this page has sent, and whose numbers it does not know yet. */
    this.expected = new Set();
    this.watching = new Set();
    /** Which server this is of; null: none has said hello. */
    this.server = null;
    this.now = 0;
    this.reset(null);
  }

  /** Tell whether a hello is of the same server, whose trace was not read for a while. */
  continues(hello) {
    return hello.server === this.server && hello.now >= this.now;
  }

  /** Go on behind a while in which nothing was seen. */
  resume(hello) {
    const from = this.now;
    this.watching.clear();
    this.isServing = hello.is_serving;
    const isOpen = new Set(hello.requests.map(({ id }) => id));
    for (const request of this.open) {
      request.lastToken = null; // the time until the next one is no gap
      if (!isOpen.has(request.id)) this.conclude(request, { id: request.id, at: request.lastSeen, reason: "ended unseen" });
    }
    for (const each of hello.requests) this.arrived(each);
    this.onMark({ kind: "unseen", decoding: [], from, to: hello.now });
  }

  /** Forget everything; which requests are one's own, too, if a server said hello before: those of another one begin anew. */
  reset(hello) {
    if (this.server !== null) this.own.clear();
    this.server = hello === null ? null : hello.server;
    this.watching.clear();
    this.requests.clear();
    this.ended = [];
    this.numOpen = 0;
    this.steps = [];
    this.gaps = [];
    this.pool = null;
    this.now = hello?.now ?? 0;
    this.isServing = hello?.is_serving ?? false;
    this.pageSize = hello?.page_size ?? 1;
    this.deaths = [];
    for (const each of hello?.requests ?? []) this.arrived(each);
  }

  take(event) {
    if (event.kind === "hello") {
      if (this.continues(event)) this.resume(event);
      else this.reset(event);
    }
    this.now = Math.max(this.now, event.now);
    if (event.kind === "requests") {
      event.arrived.forEach((each) => this.arrived(each));
      event.ended.forEach((each) => this.finish(each));
    }
    if (event.kind === "engine") {
      this.isServing = event.is_serving;
      if (!event.is_serving) this.died(event.now);
    }
    if (event.kind === "steps") {
      this.pool = event.pool;
      let decodes = [];
      for (const step of event.steps) {
        decodes = step.decodes ?? decodes;
        this.step({ chunks: [], slices: [], admitted: [], counts: {}, loads: 0, stores: 0, ...step, decodes });
      }
    }
  }

  died(at) {
    this.deaths.push(at);
    for (const request of this.open) request.admittedAt = null; // the next engine admits it again
  }

  /**
   * Say that this page sends a request, at a moment. Its number comes with its first token; until then the first request
   * that arrives is taken for it. Return a function that takes the number, or null if there will be none.
   */
  expectOwn(at) {
    const expected = { at, guess: null };
    this.expected.add(expected);
    return (id) => {
      if (!this.expected.delete(expected)) return;
      if (expected.guess !== null) expected.guess.isOwn = this.own.has(expected.guess.id);
      if (id !== null) this.markOwn(id);
    };
  }

  /** Say that a request was sent by this page. */
  markOwn(id) {
    this.own.add(id);
    const request = this.requests.get(id);
    if (request !== undefined) request.isOwn = true;
  }

  guessOwn(request) {
    if (request.isOwn) return;
    const expected = [...this.expected].find(({ at, guess }) => guess === null && at <= request.arrived);
    if (expected === undefined) return;
    expected.guess = request;
    request.isOwn = true;
  }

  arrived({ id, arrived, prompt_tokens: promptTokens, output_tokens: outputTokens = 0 }) {
    const request = this.request(id, arrived);
    request.promptTokens = promptTokens;
    request.arrived = arrived;
    this.guessOwn(request);
    if (outputTokens > request.outputTokens) request.isMissed = true;
    request.outputTokens = Math.max(request.outputTokens, outputTokens);
  }

  request(id, at) {
    let found = this.requests.get(id);
    if (found === undefined) {
      found = new TracedRequest(id, at, null);
      found.isOwn = this.own.has(id);
      this.requests.set(id, found);
      this.numOpen += 1;
    }
    return found;
  }

  finish(end) {
    const request = this.requests.get(end.id);
    if (request === undefined || request.end !== null) return;
    if (end.output_tokens !== null) request.outputTokens = end.output_tokens;
    if (end.cached_tokens > 0) request.cachedTokens = end.cached_tokens;
    this.conclude(request, end);
    this.onMark({ kind: "end", request, from: request.lastSeen, to: Math.max(end.at, request.lastSeen) });
  }

  conclude(request, end) {
    request.end = end;
    this.numOpen -= 1;
    // The report of its last step may come behind its end.
    if (this.ended.push(request) > MOST_ENDED) this.requests.delete(this.ended.shift().id);
  }

  step(step) {
    step.ended = step.began + step.micros;
    step.written = 0;
    this.steps.push(step);
    if (this.steps.length > MOST_STEPS) this.steps.splice(0, MOST_STEPS / 4);
    for (const id of step.admitted) this.admit(id, step);
    for (const chunk of step.chunks) this.compute("prefill", chunk, step);
    for (const slice of step.slices) this.compute(slice.is_resident ? "prefill" : "offloaded", slice, step);
    const decoding = step.decodes.map((id) => this.request(id, step.began));
    for (const request of decoding) {
      request.lastSeen = step.ended;
      this.token(request, step);
    }
    this.onMark({ kind: "step", step, decoding, from: step.began, to: step.ended });
  }

  admit(id, step) {
    const request = this.request(id, step.began);
    const first = [...step.chunks, ...step.slices].find((chunk) => chunk.id === id);
    if (request.admittedAt !== null) request.preemptions += 1;
    else request.cachedTokens ??= first?.start ?? null;
    request.admittedAt = step.began;
    const isCached = (first?.start ?? 0) > 0;
    this.onMark({ kind: "wait", request, from: Math.max(request.arrived, request.lastSeen), to: step.began, isCached });
  }

  compute(kind, chunk, step) {
    const request = this.request(chunk.id, step.began);
    request.chunks += 1;
    request.lastSeen = step.ended;
    this.onMark({ kind, request, chunk, step, from: step.began, to: step.ended });
    if (chunk.samples) this.token(request, step);
  }

  token(request, step) {
    const count = tokensOf(step, request.id);
    if (count === 0) return;
    step.written += count;
    if (request.end === null) request.outputTokens += count; // the end has counted them
    if (request.firstToken === null && !request.isMissed) request.firstToken = step.known;
    if (request.lastToken !== null) this.between(request, step);
    request.lastToken = step.known;
  }

  between(request, step) {
    const gap = step.known - request.lastToken;
    for (const watched of this.watching) watched.push({ request, from: request.lastToken, to: step.known });
    const isUnusual = gap >= Math.max(LEAST_GAP, UNUSUAL * (request.itl ?? 0));
    request.longestGap = Math.max(request.longestGap, gap);
    if (request.recent.push(gap) > RECENT) request.recent.shift();
    if (!isUnusual) return;
    const found = { request, from: request.lastToken, to: step.known, micros: gap, why: "" };
    found.why = causesOf(this, found);
    this.gaps.push(found);
    if (this.gaps.length > MOST_GAPS) this.gaps.shift();
    this.onMark({ kind: "gap", request, gap: found, from: found.from, to: found.to });
  }

  /** Return a list that gets every time between two tokens of a stream, until `unwatchGaps` or the next hello. */
  watchGaps() {
    const watched = [];
    this.watching.add(watched);
    return watched;
  }

  isWatching(watched) {
    return this.watching.has(watched);
  }

  unwatchGaps(watched) {
    this.watching.delete(watched);
  }

  /** The requests that have not ended. */
  get open() {
    return [...this.requests.values()].filter((request) => request.end === null);
  }

  /** Return the steps that ended behind a moment. */
  since(from) {
    let first = this.steps.length;
    while (first > 0 && this.steps[first - 1].ended > from) first -= 1;
    return this.steps.slice(first);
  }
}
