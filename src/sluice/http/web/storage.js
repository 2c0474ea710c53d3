// What the browser keeps of this page: the key, the theme, the settings and the conversations. Nothing of it is sent
// anywhere but to this server, and the key in a header alone.

const PREFIX = "sluice.";

/** Return what was kept under a name, or `otherwise`. */
export function read(name, otherwise) {
  try {
    const kept = localStorage.getItem(PREFIX + name);
    return kept === null ? otherwise : JSON.parse(kept);
  } catch {
    return otherwise; // storage is off, or another program wrote there
  }
}

/** Return the names that begin so and under which something is kept, without that beginning. */
export function names(beginning) {
  try {
    const all = Array.from({ length: localStorage.length }, (_, at) => localStorage.key(at));
    const start = PREFIX + beginning;
    return all.filter((name) => name.startsWith(start)).map((name) => name.slice(start.length));
  } catch {
    return []; // storage is off
  }
}

/** Call `take` with the rest of each name that begins so, and its value, when another tab keeps or removes (null) it. */
export function onOtherTab(beginning, take) {
  const start = PREFIX + beginning;
  addEventListener("storage", ({ key }) => {
    if (key !== null && key.startsWith(start)) take(key.slice(start.length), read(key.slice(PREFIX.length), null));
  });
}

/** Keep a value; null removes it. Return whether the browser has room for it. */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
