// The limits that keep steps from holding more: how they are named and drawn, and what each of them says.

import { el } from "./dom.js";

/** Colour, name and explanation by the limit's name in the trace; without a name there it is the option's own. */
const LIMITS = {
  nothing: { colour: "line", name: "no limit", says: "The step held all that there was to do." },
  max_batch_tokens: { says: "The step had as many tokens as a step may hold, written ones and those of prompts." },
  chunked_prefill_size: { says: "A prompt was cut: a chunk of the size that one step may read was taken from it." },
  max_prefill_tokens: { says: "The step read as many tokens of prompts as one step may read in all." },
  long_prefill_token_threshold: { says: "A long prompt was cut, so that shorter ones are read beside it." },
  max_prefill_requests: { says: "The step read as many prompts as one step may read." },
  max_partial_prefills: { says: "As many prompts as allowed are read in part, so no other one was begun." },
  max_running_requests: { colour: "offloaded", says: "As many requests run as may, so another one waits." },
  kv_pages: { colour: "gap", says: "The device's memory for contexts is full, so a request waits for pages." },
  prefill_first: { says: "Prompts are read before streams go on, as the schedule was chosen." },
  tier_pages: { colour: "gap", says: "A context longer than the device waits for room in the memory that holds it." },
  itl_target: { colour: "decode", says: "More of a prompt would have made the streams slower than the time set for a token." },
  offload_budget: { says: "More of a context longer than the device was ready to be read than fits into one step." },
  disk_reads: { colour: "gap", says: "A context longer than the device waits for what a disk has not brought yet." },
};

/** Return the name of the colour in which steps are drawn that a limit bound: by default that of reading prompts. */
export function colourOf(bound) {
  return LIMITS[bound]?.colour ?? "prefill";
}

/** Return a limit's name for people. */
export function nameOf(bound) {
  return LIMITS[bound]?.name ?? bound;
}

/** Return what a limit says about a step. */
export function explanationOf(bound) {
  return LIMITS[bound]?.says ?? "An option of the server limits the steps.";
}

/** Add all limits to a list of words. */
export function explainLimits(list) {
  for (const bound of Object.keys(LIMITS)) {
    list.append(el("div", {}, el("dt", {}, nameOf(bound)), el("dd", {}, explanationOf(bound))));
  }
}
