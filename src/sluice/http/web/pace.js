// How fast one's own request is answered, as this browser sees it: times of arrival.

/** Tokens that come within less of each other came together, in milliseconds. */
const TOGETHER = 1;

/** Times of the tokens of one answer, in milliseconds. */
export class Pace {
  constructor() {
    this.began = 0;
    this.first = null;
    this.last = 0;
    this.gaps = [];
    /** Tokens that came together with the first one. */
    this.firstBurst = 1;
    this.usage = null;
  }

  begin(now) {
    this.began = now;
  }

  /** Note that an event with text came. */
  token(now) {
    if (this.first === null) this.first = now;
    else {
      if (this.firstBurst > this.gaps.length && now - this.last < TOGETHER) this.firstBurst += 1;
      this.gaps.push(now - this.last);
    }
    this.last = now;
  }

  get longest() {
    return this.gaps.reduce((longest, gap) => Math.max(longest, gap), 0);
  }

  /** Return the figures in words. */
  shown() {
    if (this.first === null) return "waiting for the first token";
    const words = [`first token after ${ms(this.first - this.began)}`];
    const tokens = this.usage?.completion_tokens ?? this.gaps.length + 1;
    words.push(tokens === 1 ? "1 token" : `${tokens} tokens`);
    if (this.gaps.length > 0) {
      const seconds = (this.last - this.first) / 1000;
      // An event may hold several tokens.
      const events = this.gaps.length + 1;
      const later = (tokens * (events - this.firstBurst)) / events;
      if (this.gaps.length >= this.firstBurst) words.push(`${(later / seconds).toFixed(1)} tokens/s`);
      words.push(`ITL ${ms(median(this.gaps))}, longest ${ms(this.longest)}`);
    }
    const cached = this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
    if (this.usage !== null) words.push(`prompt of ${this.usage.prompt_tokens} tokens${cached ? `, ${cached} cached` : ""}`);
    return words.join(" · ");
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
