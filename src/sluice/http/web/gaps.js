// Why a stream stood still, in words.

import { ms } from "./pace.js";

const MOST_CAUSES = 2;

/** Return what the engine did between two tokens of a request. */
export function causesOf(run, gap) {
  const words = [];
  if (run.deaths.some((at) => at >= gap.from && at <= gap.to)) words.push("the engine ended, and another one was started");
  if (gap.request.preemptions > 0 && gap.request.admittedAt > gap.from) {
    words.push("it was preempted: its pages were taken for other requests");
  }
  const steps = run
    .since(gap.from)
    .filter((step) => step.began < gap.to)
    .map((step) => ({ step, micros: Math.min(step.ended, gap.to) - Math.max(step.began, gap.from) }))
    .filter(({ micros }) => micros > 0)
    .sort((one, other) => other.micros - one.micros);
  const busy = steps.reduce((sum, { micros }) => sum + micros, 0);
  for (const { step, micros } of steps.slice(0, MOST_CAUSES)) {
    if (micros * 10 >= gap.micros) words.push(`step ${step.step} took ${ms(micros / 1000)} of it: ${contentOf(step)}`);
  }
  if ((gap.micros - busy) * 3 > gap.micros) {
    words.push(`for ${ms((gap.micros - busy) / 1000)} of it the engine computed nothing`);
  }
  return words.join("; ") || `${steps.length} short steps`;
}

/** Return what a step computed. */
export function contentOf(step) {
  const pieces = [
    ...step.chunks.map((chunk) => `${count(chunk.length, "token")} of request ${chunk.id}`),
    ...step.slices.map((part) => `a part of ${count(part.length, "offloaded token")} of request ${part.id}`),
  ];
  const shown = pieces.slice(0, 3);
  if (pieces.length > 3) shown.push(`${pieces.length - 3} more`);
  const words = shown.length === 0 ? [] : [`read ${shown.join(", ")}`];
  if (step.decodes.length > 0) words.push(count(step.decodes.length, "decode"));
  if (step.loads > 0) words.push(`loads ${count(step.loads, "page")}`);
  if (step.stores > 0) words.push(`stores ${count(step.stores, "page")}`);
  return words.join(", ") || "copies";
}

/** Return a number with its noun. */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
