// How fast one's own request is answered, as this browser sees it: times of arrival.

/** Tokens that come within less of each other are one arrival, which lasts less than the second, in milliseconds. */
const TOGETHER = 1;
const LONGEST_ARRIVAL = 20;
/** There is no median of fewer arrivals. */
const LEAST_FOR_MEDIAN = 20;
/** There is no rate of fewer arrivals, nor of a shorter time, in milliseconds. */
const LEAST_FOR_RATE = 4;
const SHORTEST_FOR_RATE = 500;

/** Times of the tokens of one answer, in milliseconds. */
export class Pace {
  constructor() {
    this.began = 0;
    /** When each arrival began, and the events that all of them brought. */
    this.arrivals = [];
    this.events = 0;
    /** Events of the first arrival. */
    this.firstBurst = 0;
    this.last = -Infinity;
    this.usage = null;
  }

  begin(now) {
    this.began = now;
  }

  /** Note that an event with text came. */
  token(now) {
    const isTogether = now - this.last < TOGETHER && now - this.arrivals.at(-1) < LONGEST_ARRIVAL;
    if (!isTogether) this.arrivals.push(now);
    if (this.arrivals.length === 1) this.firstBurst += 1;
    this.events += 1;
    this.last = now;
  }

  /** When the first token came; null: none did. */
  get first() {
    return this.arrivals[0] ?? null;
  }

  /** Return the figures in words. */
  shown() {
    if (this.first === null) return "waiting for the first token";
    const tokens = this.usage?.completion_tokens ?? this.events;
    const words = [
      `first token after ${ms(this.first - this.began)}`,
      tokens === 1 ? "1 token" : `${tokens} tokens`,
      ...this.rate(tokens),
      ...this.between(),
    ];
    const cached = this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
    if (this.usage !== null) words.push(`prompt of ${this.usage.prompt_tokens} tokens${cached ? `, ${cached} cached` : ""}`);
    return words.join(" · ");
  }

  /** Return the tokens per second from the first arrival to the last one, in words; nothing if that says nothing. */
  rate(tokens) {
    const milliseconds = this.arrivals.at(-1) - this.first;
    if (this.arrivals.length < LEAST_FOR_RATE || milliseconds < SHORTEST_FOR_RATE) return [];
    // An event may hold several tokens. Those of the first arrival took the time to it.
    const later = (tokens * (this.events - this.firstBurst)) / this.events;
    return [`${((1000 * later) / milliseconds).toFixed(1)} tokens/s`];
  }

  /** Return the times between arrivals, in words; nothing if there is none. */
  between() {
    const gaps = this.arrivals.slice(1).map((arrival, before) => arrival - this.arrivals[before]);
    if (gaps.length === 0) return [];
    const longest = gaps.reduce((most, gap) => Math.max(most, gap), 0);
    const usual = this.arrivals.length < LEAST_FOR_MEDIAN ? "" : `${ms(median(gaps))} in the median, `;
    return [`between tokens ${usual}${ms(longest)} at most`];
  }

  /** Return the same for an answer that is over; null if no token came. */
  summary() {
    return this.first === null ? null : this.shown();
  }
}

/** Return the middle one of some numbers, of which there is at least one. */
export function median(numbers) {
  return [...numbers].sort((one, other) => one - other)[numbers.length >> 1];
}

/** Return milliseconds for people. */
export function ms(value) {
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 10 ? `${value.toFixed(0)} ms` : `${value.toFixed(1)} ms`;
}
