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
