// The request of a conversation as code for other programs. The key is a variable there, never the key itself.

import { announce, byId } from "./dom.js";

/** For so long a button says what became of a copy. */
const SAID_MS = 2000;
const KEY_VARIABLE = "SLUICE_API_KEY";

/** Return a shell command that sends a request. */
export function asCurl(base, request) {
  const data = JSON.stringify({ ...request, stream: true }, null, 2);
  return [
    `curl -N ${quoted(`${base}/chat/completions`)} \\`,
    "  -H 'Content-Type: application/json' \\",
    `  -H "Authorization: Bearer $${KEY_VARIABLE}" \\`,
    `  -d ${quoted(data)}`,
  ].join("\n");
}

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

const OPENAI_FIELDS = new Set([
  ...["model", "messages", "temperature", "top_p", "presence_penalty", "frequency_penalty", "max_tokens", "seed"],
]);

/** Return a Python program that sends a request. What OpenAI's client does not know goes into `extra_body`. */
export function asPython(base, request) {
  const given = Object.entries(request);
  const known = given.filter(([name]) => OPENAI_FIELDS.has(name));
  const others = given.filter(([name]) => !OPENAI_FIELDS.has(name));
  const extra = others.length === 0 ? [] : [`    extra_body=${python(Object.fromEntries(others))},`];
  return [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${python(base)}, api_key=os.environ.get("${KEY_VARIABLE}", "unused"))`,
    "stream = client.chat.completions.create(",
    ...known.map(([name, value]) => `    ${name}=${python(value)},`),
    ...extra,
    "    stream=True,",
    ")",
    "for event in stream:",
    "    if event.choices:",
    '        print(event.choices[0].delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

/** Return a value of JSON without true, false and null as Python writes it. */
function python(value) {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

/** Put code on the clipboard, or show it where the browser does not allow that. The button that was pressed says which. */
export async function offer(title, code, pressed) {
  try {
    await navigator.clipboard.writeText(code);
    sayOn(pressed, "Copied");
    announce(`${title}: copied`);
    return;
  } catch {
    // Without TLS only pages of this machine may use the clipboard.
  }
  sayOn(pressed, "Not copied");
  const dialog = byId("code-dialog");
  byId("code-title").textContent = title;
  byId("code-text").value = code;
  dialog.showModal();
  byId("code-text").select();
}

/** Show some words in the place of a button's label for a while. */
function sayOn(pressed, words) {
  pressed.dataset.label ??= pressed.textContent;
  pressed.textContent = words;
  clearTimeout(Number(pressed.dataset.timer));
  pressed.dataset.timer = setTimeout(() => {
    pressed.textContent = pressed.dataset.label;
  }, SAID_MS);
}
