// The sampling settings, kept in the browser. An empty field leaves the choice to the server.

import { byId, el } from "./dom.js";
import { keep, read } from "./storage.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", min: -1, max: 1000, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 2, step: 0.01 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "max_tokens", label: "Most tokens", min: 1, max: 1_000_000, step: 1 },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

/** Draw the fields, and keep what is entered. */
export function setUpSettings() {
  const kept = sampling();
  const fields = FIELDS.map(({ name, label, ...bounds }) => {
    const input = el("input", { type: "number", inputmode: "decimal", placeholder: "default", ...bounds });
    input.value = kept[name] ?? "";
    input.addEventListener("change", () => {
      if (input.reportValidity()) keepField(name, input.value);
    });
    return el("label", {}, el("span", {}, label), input);
  });
  byId("settings-body").append(el("div", { class: "fields" }, ...fields));
}

function keepField(name, text) {
  const { [name]: _, ...others } = sampling();
  keep("sampling", text === "" ? others : { ...others, [name]: Number(text) });
}

/** Return the sampling parameters that were set, by their names in the API. */
export function sampling() {
  const kept = read("sampling", {});
  return Object.fromEntries(
    FIELDS.map(({ name }) => [name, kept?.[name]]).filter(([, value]) => Number.isFinite(value)),
  );
}
