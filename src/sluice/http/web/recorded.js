// A recorded run, played at its own pace: this server with chunks turned off, so that long prompts are read at once.

import { byId } from "./dom.js";
import { count } from "./gaps.js";
import { ms } from "./pace.js";
import { Run } from "./run.js";
import { DELAY, Timeline } from "./timeline.js";

export class Recorded {
  constructor() {
    this.playing = 0;
    this.at = 0;
    byId("play-recorded").addEventListener("click", () => this.play());
  }

  async load() {
    const response = await fetch("page/recorded.json");
    this.record = await response.json();
    const { events } = this.record;
    this.from = events[0].now;
    this.to = events.at(-1).now;
    const seconds = (this.to - this.from) / 1e6;
    this.timeline = new Timeline(byId("recorded"), byId("recorded-tip"), () => this.at + DELAY, { seconds, from: this.from });
    this.run = new Run((mark) => this.timeline.mark(mark));
    this.timeline.run = this.run;
    this.show(Infinity);
    const longest = Math.max(...this.run.gaps.map(({ micros }) => micros));
    byId("recorded-result").textContent =
      `${count(this.record.tokens, "token")} were read in one piece, and the streams stood still for ${ms(longest / 1000)}.` +
      ` This was recorded on another machine (${this.record.model} on ${this.record.machine}): compare its shape with yours,` +
      " not its seconds.";
    const step = (now) => {
      requestAnimationFrame(step);
      this.timeline.tick(now);
    };
    requestAnimationFrame(step);
  }

  /** Show the run from its beginning up to some microseconds behind it. */
  show(micros) {
    this.timeline.clear();
    this.run.reset(null);
    this.next = 0;
    this.forward(micros);
  }

  forward(micros) {
    const { events } = this.record;
    this.at = Math.min(this.from + micros, this.to);
    while (this.next < events.length && events[this.next].now <= this.at) this.run.take(events[this.next++]);
  }

  play() {
    if (this.record === undefined) return;
    const playing = ++this.playing;
    const began = performance.now();
    this.show(0);
    const step = (now) => {
      if (playing !== this.playing) return;
      const micros = Math.max(0, now - began) * 1000;
      this.forward(micros);
      if (this.at < this.to) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
}
