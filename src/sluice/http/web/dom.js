// Elements without markup: text becomes text nodes, so nothing that a model or a server sends is ever parsed as HTML.

/** Return a new element. Attributes whose names begin with "on" are listeners; null, undefined and false are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Return a button. Its label is what people and screen readers see, unless `attributes` has an `aria-label`. */
export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

/** Return the element of this id, which the page has. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

/** Say something to screen readers, politely, without moving the focus. */
export function announce(text) {
  byId("announcer").textContent = text;
}
