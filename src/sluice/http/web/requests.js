// The requests of a run as a table: what the timeline shows, for those who read or listen.

import { el } from "./dom.js";
import { ms } from "./pace.js";

const MOST_ROWS = 40;
const COLUMNS = ["Request", "Prompt", "Cached", "Output", "Chunks", "Waited", "First token", "Between tokens", "Longest gap", "State"];

export class RequestTable {
  /** `details` is opened to see the table; nothing is drawn while it is closed. */
  constructor(details, run) {
    this.details = details;
    this.run = run;
    this.body = el("tbody");
    const head = el("tr", {}, ...COLUMNS.map((name) => el("th", { scope: "col" }, name)));
    const table = el("table", { "aria-label": "Requests" }, el("thead", {}, head), this.body);
    details.append(el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Requests" }, table));
  }

  draw(now) {
    if (!this.details.open) return;
    const shown = [...this.run.open.reverse(), ...this.run.ended.toReversed()].slice(0, MOST_ROWS);
    while (this.body.rows.length > shown.length) this.body.deleteRow(-1);
    while (this.body.rows.length < shown.length) {
      this.body.append(el("tr", {}, ...COLUMNS.map((_, column) => el(column === 0 ? "th" : "td"))));
    }
    shown.forEach((request, row) => fill(this.body.rows[row], request, now));
  }
}

function fill(row, request, now) {
  row.classList.toggle("own", request.isOwn);
  cellsOf(request, now).forEach((text, column) => {
    if (row.cells[column].textContent !== text) row.cells[column].textContent = text;
  });
}

function cellsOf(request, now) {
  const span = (from, to) => (from === null || to === null ? "" : ms(Math.max(0, to - from) / 1000));
  const number = (value) => (value === null ? "" : value.toLocaleString("en"));
  const isWaiting = request.admittedAt === null && request.lastToken === null && request.end === null;
  return [
    request.isOwn ? `${request.id} (yours)` : String(request.id),
    number(request.promptTokens),
    number(request.cachedTokens),
    number(request.outputTokens),
    number(request.chunks),
    span(request.arrived, request.isWaiting ? now : request.admittedAt),
    span(request.arrived, request.firstToken),
    request.itl === null ? "" : ms(request.itl / 1000),
    request.longestGap === 0 ? "" : ms(request.longestGap / 1000),
    request.preemptions > 0 ? `${request.state}, preempted ${request.preemptions}×` : request.state,
  ];
}
