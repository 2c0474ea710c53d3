// The timeline of a run, drawn on a canvas: time goes to the right, each request has a lane, and the steps of the
// engine lie above them. What is drawn once is kept in tiles, so a frame copies a few pictures however much goes on.

import { el } from "./dom.js";
import { contentOf, count } from "./gaps.js";
import { Lanes } from "./lanes.js";
import { colourOf, explanationOf, nameOf } from "./limits.js";
import { ms } from "./pace.js";
import { tokensOf } from "./run.js";

const HEAD = 16;
const GRID = 14;
const MOST_LANES = 64;
const LEAST_LANES = 6;
const MOST_MARKS = 20_000;
/** The picture lags behind, as reports come four times a second: what is drawn at its edge is complete. */
export const DELAY = 450_000;
const FRAME_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 30;
const TILES = 4;
/** How often lanes are put in order, in milliseconds: all is drawn again then. */
const ARRANGE_MS = 1000;
/** The room for names is that of the first of these that takes no more than this part of the picture. */
const LONGEST_NAMES = ["you: request 9999, 10,000 tokens", "you: request 9999"];
const NAMES_SHARE = 0.4;
const NAME_FONT = "11px system-ui, sans-serif";
/** Seconds between the labels of the axis, and the least pixels between them. */
const SECONDS = [1, 2, 5, 10, 20, 60];
const LABEL_WIDTH = 34;
/** Width of a token, in pixels; tokens that come faster join. */
const TICK = 3;
const COLOURS = ["text", "quiet", "line", "panel", "accent", "prefill", "decode", "cached", "offloaded", "gap", "stall"];

/** Draws a run. Give `mark` to the run, and call `tick` in every frame. */
export class Timeline {
  /**
   * `clock` returns the run's time now, in microseconds. The picture is of the last `seconds`; with `from` it stands still
   * and is of the seconds behind that moment, from which times are counted.
   */
  constructor(canvas, tip, clock, { seconds = 20, from = null } = {}) {
    this.canvas = canvas;
    this.tip = tip;
    this.clock = clock;
    this.span = seconds * 1e6;
    this.run = null;
    this.marks = [];
    this.tiles = new Map();
    this.lanes = new Lanes(MOST_LANES);
    this.from = from;
    this.pausedAt = null;
    this.drawnAt = 0;
    this.arrangedAt = 0;
    /** Width of the names, to the left of the drawing. */
    this.gutter = 0;
    this.hasNews = true;
    new ResizeObserver(() => this.resize()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    new MutationObserver(() => this.restyle()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    this.restyle();
  }

  /** Forget what was drawn. */
  clear() {
    this.marks = [];
    this.tiles.clear();
    this.lanes = new Lanes(MOST_LANES);
    this.hasNews = true;
  }

  show(seconds) {
    this.span = seconds * 1e6;
    this.placeAll();
  }

  pause(isPaused) {
    this.pausedAt = isPaused ? this.edge() : null;
    this.placeAll();
  }

  /** Give lanes to all that is in the picture, and draw it again. */
  placeAll() {
    for (const mark of this.marks) this.place(mark);
    this.arrangedAt = -Infinity;
    this.redraw();
  }

  place(mark) {
    for (const request of mark.decoding ?? [mark.request]) this.lanes.place(request, this.edge() - this.span);
  }

  /** Give lanes to requests that wait, too, and put all in order. */
  arrange(now, left) {
    if (this.pausedAt !== null && this.arrangedAt >= 0) return; // the picture is held
    for (const request of this.run.open) this.lanes.place(request, left);
    if (now - this.arrangedAt < ARRANGE_MS) return;
    this.arrangedAt = now;
    if (this.lanes.arrange(left)) this.redraw();
  }

  /** The time at the right edge. */
  edge() {
    return this.from === null ? this.seenUntil() : this.from + this.span;
  }

  /** The time up to which the run is drawn. */
  seenUntil() {
    return this.pausedAt ?? this.clock() - DELAY;
  }

  /** Take something to draw. */
  mark(mark) {
    if (this.pausedAt === null) this.place(mark);
    if (this.marks.push(mark) > MOST_MARKS) this.marks.splice(0, MOST_MARKS / 4);
    this.hasNews = true;
    if (document.hidden || this.pausedAt !== null) this.drawnLanes = -1; // all is drawn again when it can be seen
    else this.drawOnTiles(mark);
  }

  restyle() {
    const style = getComputedStyle(this.canvas);
    const colour = (name) => resolved(style.getPropertyValue(`--${name}`), this.canvas);
    this.colours = Object.fromEntries(COLOURS.map((name) => [name, colour(name)]));
    this.redraw();
  }

  resize() {
    const ratio = Math.min(devicePixelRatio, 2);
    this.width = this.canvas.clientWidth;
    this.canvas.width = Math.max(1, Math.round(this.width * ratio));
    this.ratio = ratio;
    this.redraw();
  }

  /** Draw all tiles again when they are needed. */
  redraw() {
    this.tiles.clear();
    this.drawnLanes = -1;
    this.hasNews = true;
  }

  laneHeight() {
    const lanes = Math.max(this.lanes.count, LEAST_LANES);
    return lanes <= 10 ? 20 : lanes <= 18 ? 14 : lanes <= 32 ? 10 : 6;
  }

  /** Draw a frame, if it is time for one and there is something to see. */
  tick(now) {
    if (now - this.drawnAt < FRAME_MS || !this.width || this.run === null || document.hidden) return;
    const left = this.edge() - this.span;
    this.forget(left);
    this.arrange(now, left);
    const isEmpty = this.marks.length === 0 && this.run.numOpen === 0;
    if (!this.hasNews && (isEmpty || this.pausedAt !== null)) return;
    this.drawnAt = now;
    this.hasNews = false;
    this.fit();
    this.draw(left);
  }

  /** Make the canvas as high as its lanes. */
  fit() {
    if (this.drawnLanes === this.lanes.count || (this.pausedAt !== null && this.tiles.size > 0)) return;
    this.drawnLanes = this.lanes.count;
    this.tiles.clear();
    this.lane = this.laneHeight();
    this.height = HEAD + GRID + Math.max(this.lanes.count, LEAST_LANES) * this.lane;
    this.canvas.height = Math.round(this.height * this.ratio);
    this.canvas.style.height = `${this.height}px`;
    this.gutter = this.namesWidth();
    for (const mark of this.marks) this.drawOnTiles(mark);
  }

  namesWidth() {
    if (this.lane < 10) return 0;
    const paint = this.canvas.getContext("2d");
    paint.font = NAME_FONT;
    const most = NAMES_SHARE * this.width;
    const widths = LONGEST_NAMES.map((name) => Math.ceil(paint.measureText(name).width) + 10);
    return widths.find((width) => width <= most) ?? Math.floor(most);
  }

  forget(left) {
    let gone = 0;
    while (gone < this.marks.length && this.marks[gone].to < left - this.span) gone += 1;
    if (gone > 0) this.marks.splice(0, gone);
    for (const [index] of this.tiles) if ((index + 1) * this.tileSpan < left) this.tiles.delete(index);
  }

  get tileSpan() {
    return this.span / TILES;
  }

  /** Width of what is drawn to the right of the names. */
  get plotWidth() {
    return this.width - this.gutter;
  }

  get scale() {
    return this.plotWidth / this.span;
  }

  draw(left) {
    const paint = this.canvas.getContext("2d");
    paint.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    paint.clearRect(0, 0, this.width, this.height);
    this.drawNames(paint);
    paint.save();
    paint.translate(this.gutter, 0);
    paint.beginPath();
    paint.rect(0, 0, this.plotWidth, this.height);
    paint.clip();
    this.drawGrid(paint, left);
    for (const [index, tile] of this.tiles) {
      const x = Math.round((index * this.tileSpan - left) * this.scale * this.ratio) / this.ratio;
      if (x < this.plotWidth) paint.drawImage(tile.canvas, x, 0, tile.canvas.width / this.ratio, this.height);
    }
    this.drawOpen(paint, left);
    paint.restore();
  }

  drawGrid(paint, left) {
    paint.font = "10px system-ui, sans-serif";
    const every = 1e6 * (SECONDS.find((seconds) => 1e6 * seconds * this.scale >= LABEL_WIDTH) ?? SECONDS.at(-1));
    const zero = this.from ?? left + this.span;
    for (let at = zero + Math.ceil((left - zero) / every) * every; at < left + this.span; at += every) {
      const x = (at - left) * this.scale;
      paint.fillStyle = this.colours.line;
      paint.fillRect(x, 0, 1, this.height - GRID);
      paint.fillStyle = this.colours.quiet;
      const label = `${Math.round((at - zero) / 1e6)} s`;
      const length = paint.measureText(label).width;
      paint.fillText(label, x + 3 + length <= this.plotWidth ? x + 3 : x - 3 - length, this.height - 3);
    }
  }

  /** Draw what goes on: requests that wait, and how long a stream has been without a token. */
  drawOpen(paint, left) {
    const now = this.seenUntil();
    for (const request of this.run.open) {
      const y = this.top(request);
      if (y === null) continue;
      const from = Math.max(0, (Math.max(request.lastSeen, request.arrived) - left) * this.scale);
      const length = (now - left) * this.scale - from;
      if (length <= 0 || request.lastSeen > now) continue;
      paint.fillStyle = request.isWaiting ? this.colours.quiet : this.colours.line;
      paint.fillRect(from, y + this.lane / 2 - 1, length, request.isWaiting ? 2 : 1);
    }
  }

  drawNames(paint) {
    if (this.gutter === 0) return;
    paint.font = NAME_FONT;
    for (const request of this.lanes.requests) {
      const names = namesOf(request);
      const name = names.find((each) => paint.measureText(each).width <= this.gutter - 8) ?? names.at(-1);
      paint.fillStyle = request.isOwn ? this.colours.accent : this.colours.text;
      paint.fillText(name, 4, this.top(request) + this.lane / 2 + 4);
    }
  }

  /** Where a request's lane begins; null if it has none. */
  top(request) {
    return request.lane === null ? null : HEAD + request.lane * this.lane;
  }

  drawOnTiles(mark) {
    if (!this.width || this.drawnLanes !== this.lanes.count) return;
    const first = Math.floor(mark.from / this.tileSpan);
    const last = Math.floor(mark.to / this.tileSpan);
    for (let index = Math.max(first, last - 2 * TILES); index <= last; index += 1) {
      const paint = this.tile(index);
      const x = (mark.from - index * this.tileSpan) * this.scale;
      const width = Math.max(1, (mark.to - mark.from) * this.scale);
      (DRAWERS[mark.kind] ?? (() => {}))(this, paint, mark, x, width);
    }
  }

  tile(index) {
    let found = this.tiles.get(index);
    if (found === undefined) {
      const canvas = el("canvas");
      // A mark of a pixel's width may begin at the last pixel.
      canvas.width = Math.ceil(this.tileSpan * this.scale * this.ratio) + 1;
      canvas.height = Math.round(this.height * this.ratio);
      found = { canvas, paint: canvas.getContext("2d") };
      found.paint.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      this.tiles.set(index, found);
    }
    return found.paint;
  }

  point(event) {
    const found = this.at(event.offsetX, event.offsetY);
    this.tip.hidden = found === null;
    if (found === null) return;
    this.tip.textContent = found;
    this.tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, this.width - 260))}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }

  /** Return what is drawn at a place, in words. */
  at(x, y) {
    const lane = Math.floor((y - HEAD) / this.lane);
    if (x < this.gutter) return this.lanes.requests[lane] ? namesOf(this.lanes.requests[lane])[0] : null;
    const moment = this.edge() - this.span + (x - this.gutter) / this.scale;
    const slack = 1.5 / this.scale;
    const isAt = (mark) => moment >= mark.from - slack && moment <= mark.to + slack;
    for (let index = this.marks.length - 1; index >= 0; index -= 1) {
      const mark = this.marks[index];
      if (!isAt(mark)) continue;
      const isOnLane = (mark.decoding ?? [mark.request]).some((request) => request?.lane === lane);
      if (isOnLane || mark.kind === "unseen" || (lane < 0 && mark.kind === "step")) return wordsOf(mark, lane);
    }
    return null;
  }
}

const DRAWERS = {
  unseen(view, paint, mark, x, width) {
    paint.fillStyle = view.colours.line;
    paint.globalAlpha = 0.5;
    paint.fillRect(x, 0, width, view.height - GRID);
    paint.globalAlpha = 1;
  },
  step(view, paint, mark, x, width) {
    paint.fillStyle = view.colours[colourOf(mark.step.bound_by)];
    paint.fillRect(x, 2, Math.max(1, width - 0.5), HEAD - 5);
    paint.fillStyle = view.colours.decode;
    const inset = Math.min(3, view.lane / 4);
    const tick = Math.min(TICK, Math.max(1, width - 0.5)); // a token comes at the end of its step
    for (const request of mark.decoding) {
      const y = tokensOf(mark.step, request.id) === 0 ? null : view.top(request);
      if (y !== null) paint.fillRect(x + width - tick, y + inset, tick, view.lane - 2 * inset);
    }
  },
  prefill: (view, paint, mark, x, width) => block(view, paint, mark, x, width, "prefill"),
  offloaded: (view, paint, mark, x, width) => block(view, paint, mark, x, width, "offloaded"),
  wait(view, paint, mark, x, width) {
    const y = view.top(mark.request);
    if (y === null) return;
    paint.fillStyle = view.colours.quiet;
    paint.fillRect(x, y + view.lane / 2 - 1, width, 2);
    if (!mark.isCached) return;
    paint.fillStyle = view.colours.cached;
    paint.fillRect(x + width - 4, y + 1, 4, view.lane - 2);
  },
  gap(view, paint, mark, x, width) {
    const y = view.top(mark.request);
    if (y === null) return;
    paint.fillStyle = view.colours.stall;
    paint.fillRect(x, y + 1, width, view.lane - 2);
    paint.fillStyle = view.colours.gap;
    paint.fillRect(x, y + 1, width, 2);
  },
  end(view, paint, mark, x, width) {
    const y = view.top(mark.request);
    if (y === null) return;
    const isWell = ["stop", "length"].includes(mark.request.end.reason);
    paint.fillStyle = isWell ? view.colours.quiet : view.colours.gap;
    paint.fillRect(x + width, y + 1, 2, view.lane - 2);
  },
};

function block(view, paint, mark, x, width, colour) {
  const y = view.top(mark.request);
  if (y === null) return;
  paint.fillStyle = view.colours[colour];
  paint.fillRect(x, y + 1, Math.max(1, width - 0.5), view.lane - 2);
  const label = String(mark.chunk.length);
  if (view.lane < 10 || width < 8 * label.length) return;
  paint.fillStyle = view.colours.panel;
  paint.font = "10px system-ui, sans-serif";
  paint.fillText(label, x + 3, y + view.lane / 2 + 3.5);
}

/** Return the names of a request, the longest first. */
function namesOf(request) {
  const own = request.isOwn ? "you: " : "";
  const name = `${own}request ${request.id}`;
  const prompt = request.promptTokens === null ? [] : [`${name}, ${count(request.promptTokens, "token")}`];
  return [...prompt, name, `${own}${request.id}`];
}

/** Return a mark in words. */
function wordsOf(mark, lane) {
  const length = ms((mark.to - mark.from) / 1000);
  if (mark.kind === "unseen") return `not looked at for ${length}: the page was hidden, or there was no connection`;
  if (mark.kind === "step") {
    const request = mark.decoding.find((each) => each.lane === lane);
    const what = request === undefined ? "" : `request ${request.id}: `;
    return `${what}step ${mark.step.step}, ${length}: ${contentOf(mark.step)}. ${limitOf(mark.step)}`;
  }
  const name = `request ${mark.request.id}`;
  if (mark.kind === "gap") return `${name} stood still for ${length}: ${mark.gap.why}`;
  if (mark.kind === "wait") return `${name} waited ${length}`;
  if (mark.kind === "end") return `${name} ended: ${mark.request.end.reason}`;
  const { start, length: tokens } = mark.chunk;
  return `${name}: ${mark.kind} of ${tokens} tokens from ${start}, step ${mark.step.step}, ${length}`;
}

function limitOf({ bound_by: bound }) {
  return bound === "nothing" ? explanationOf(bound) : `Limit: ${nameOf(bound)}. ${explanationOf(bound)}`;
}

/** Return a colour as canvases read it: they do not know `light-dark()`. */
function resolved(value, canvas) {
  const probe = el("span", { hidden: true });
  probe.style.color = value;
  canvas.parentElement.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
