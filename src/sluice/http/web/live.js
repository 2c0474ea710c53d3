// The live view: the trace of this server as a timeline, in numbers, and as a table.

import { byId, el } from "./dom.js";
import { count } from "./gaps.js";
import { colourOf, explainLimits, explanationOf, nameOf } from "./limits.js";
import { ms } from "./pace.js";
import { RequestTable } from "./requests.js";
import { Run } from "./run.js";
import { Timeline } from "./timeline.js";
import { Trace } from "./trace.js";

const WORDS_MS = 500;
const RECENT = 5e6;
const GAPS_SHOWN = 5;
const GAPS_LOOKED_AT = 100;
const STATES = {
  live: "live",
  lost: "no connection: trying again",
  hidden: "not read while this page is hidden",
  key: "an API key is needed",
  off: "this server has no trace",
  connecting: "connecting",
};

export class Live {
  constructor() {
    /** Microseconds of the server less those of this browser: the smallest delay that was seen. */
    this.offset = null;
    this.timeline = new Timeline(byId("timeline"), byId("timeline-tip"), () => this.now());
    this.run = new Run((mark) => this.timeline.mark(mark));
    this.timeline.run = this.run;
    this.table = new RequestTable(byId("requests"), this.run);
    this.trace = new Trace(
      (event) => this.take(event),
      (state) => this.setState(state),
    );
    this.setState("connecting");
    explainLimits(byId("limit-words"));
    byId("span").addEventListener("change", () => this.timeline.show(Number(byId("span").value)));
    byId("pause").addEventListener("click", () => this.togglePause());
    this.wordsAt = 0;
    this.shownGaps = 0;
    this.trace.start();
    requestAnimationFrame((now) => this.frame(now));
  }

  /** The server's time now, in microseconds. */
  now() {
    return performance.now() * 1000 + (this.offset ?? 0);
  }

  /** Say that this page sends a request now, as `Run.expectOwn` does. Without a clock of the server none is guessed. */
  expectOwn() {
    return this.run.expectOwn(this.offset === null ? Infinity : this.now());
  }

  take(event) {
    const offset = event.now - performance.now() * 1000;
    if (event.kind === "hello") {
      this.offset = offset;
      if (!this.run.continues(event)) {
        this.timeline.clear();
        this.shownGaps = 0;
      }
    }
    // An event that was long on its way would set the clock back.
    this.offset = Math.max(this.offset, offset);
    this.run.take(event);
    // At once, as the next engine may be there before the next frame.
    if (event.kind === "engine") this.setState(this.state);
  }

  setState(state) {
    this.state = state;
    const words = state === "live" && !this.run.isServing ? "there is no engine at the moment" : STATES[state];
    // Screen readers may say again what is set again.
    setText("trace-state", words);
    byId("trace-state").dataset.state = state;
  }

  togglePause() {
    const isPaused = this.timeline.pausedAt === null;
    this.timeline.pause(isPaused);
    byId("pause").setAttribute("aria-pressed", String(isPaused));
  }

  frame(now) {
    requestAnimationFrame((next) => this.frame(next));
    this.timeline.tick(now);
    if (now - this.wordsAt < WORDS_MS || document.hidden) return;
    this.wordsAt = now;
    if (this.state === "live") this.setState("live");
    this.drawWords();
    this.table.draw(this.now());
  }

  drawWords() {
    const { run } = this;
    const steps = run.since(this.now() - RECENT);
    const seconds = RECENT / 1e6;
    const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
    const written = sum(steps.map((step) => step.written));
    const read = sum(steps.flatMap((step) => step.chunks.map((chunk) => chunk.length)));
    const { running = 0, waiting = 0 } = run.pool ?? {};
    setText("fact-running", running);
    setText("fact-waiting", waiting);
    setText("fact-written", (written / seconds).toFixed(0));
    setText("fact-read", (read / seconds).toFixed(0));
    setText("fact-steps", (steps.length / seconds).toFixed(0));
    this.drawBounds(steps);
    setText("page-size", count(run.pageSize, "token"));
    if (run.pool !== null) drawPool(run.pool);
    this.drawGaps();
  }

  drawBounds(steps) {
    const counts = new Map();
    for (const step of steps) counts.set(step.bound_by, (counts.get(step.bound_by) ?? 0) + 1);
    const sorted = [...counts].sort(([, one], [, other]) => other - one);
    const words = sorted.map(([name, number]) => [name, `${nameOf(name)} ${Math.round((100 * number) / steps.length)}%`]);
    const text = words.map(([, each]) => each).join();
    const shown = byId("bounds");
    if (shown.dataset.text === text) return;
    shown.dataset.text = text;
    const items = words.map(([name, each]) => el("li", { class: colourOf(name), title: explanationOf(name) }, each));
    shown.replaceChildren(...(items.length > 0 ? items : [el("li", { class: "line" }, "no step in 5 seconds")]));
  }

  drawGaps() {
    const { gaps } = this.run;
    const last = gaps.at(-1) ?? null;
    if (last === this.shownGaps) return;
    this.shownGaps = last;
    const items = together(gaps.slice(-GAPS_LOOKED_AT)).slice(0, GAPS_SHOWN).map(({ ids, micros, why }) => {
      const names = `request${ids.length === 1 ? "" : "s"} ${ids.join(", ")}`;
      return el("li", {}, el("strong", {}, `${names}: ${ms(micros / 1000)}`), ` ${why}`);
    });
    byId("gaps").replaceChildren(...items);
    byId("no-gaps").hidden = gaps.length > 0;
  }
}

/** Return gaps, latest first; streams that waited for the same steps share one. */
function together(gaps) {
  const found = new Map();
  for (const { request, to, micros, why } of gaps.toReversed()) {
    const key = `${to} ${why}`;
    const same = found.get(key) ?? { ids: [], micros: 0, why };
    same.ids.unshift(request.id);
    same.micros = Math.max(same.micros, micros);
    found.set(key, same);
  }
  return [...found.values()];
}

function setText(id, value) {
  const node = byId(id);
  const text = String(value);
  if (node.textContent !== text) node.textContent = text;
}

function drawPool(pool) {
  const used = pool.total_pages - pool.free_pages - pool.cached_pages;
  const rows = [
    poolRow("device", pool.total_pages, [
      ["used", "decode", used],
      ["cached", "cached", pool.cached_pages],
    ]),
    ...pool.tiers.map(({ tier, used: offloaded, total }) => poolRow(tier, total, [["used", "offloaded", offloaded]])),
  ];
  const texts = rows.map(({ text }) => text).join();
  const shown = byId("pool");
  if (shown.dataset.texts === texts) return;
  shown.dataset.texts = texts;
  shown.replaceChildren(...rows.map(({ row }) => row));
}

/** Return a bar of a tier's pages, and what it says. */
function poolRow(tier, total, parts) {
  const free = total - parts.reduce((sum, [, , pages]) => sum + pages, 0);
  const words = [...parts, ["free", "", free]].map(([name, , pages]) => `${pages.toLocaleString("en")} ${name}`);
  const text = `${words.join(", ")} of ${count(total, "page")}`;
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  for (const [, colour, pages] of parts) {
    const part = el("span", { class: colour });
    part.style.width = `${(100 * pages) / Math.max(1, total)}%`;
    bar.append(part);
  }
  return { text: tier + text, row: el("div", {}, el("dt", {}, tier), el("dd", {}, bar, el("span", {}, text))) };
}
