// Markdown as elements. Nothing is sanitised because nothing unsafe is ever made: no markup is parsed, HTML in the text
// stays text, pictures become links, and links lead to http, https and mailto alone.

import { button, el } from "./dom.js";
import { offer } from "./snippets.js";

const DEEPEST = 8;
/** Characters of a paragraph whose emphasis is looked for: an unclosed mark is searched to the paragraph's end. */
const LONGEST_INLINE = 10_000;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}>\s?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const ESCAPED = /^\\([!-/:-@[-`{-~])/;
const BARE_LINK = /^https?:\/\/[^\s<>"']*[^\s<>"'.,;:!?)\]}]/;
const PAIRS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];

/** Return the elements of a whole text. */
export function markdown(text) {
  const made = document.createDocumentFragment();
  made.append(...blocks(text.split("\n"), 0));
  return made;
}

/** A text that grows at its end: what stands before the last blank line outside of code is drawn once. */
export class GrowingMarkdown {
  constructor(parent) {
    this.parent = parent;
    this.settled = 0;
    this.tail = [];
  }

  /** Show `text`, which begins with what was shown before. */
  show(text) {
    for (const node of this.tail) node.remove();
    const end = settledEnd(text, this.settled);
    if (end > this.settled) {
      this.parent.append(...blocks(text.slice(this.settled, end).split("\n"), 0));
      this.settled = end;
    }
    this.tail = blocks(text.slice(this.settled).split("\n"), 0);
    this.parent.append(...this.tail);
  }
}

/** Return where the last paragraph that may still change begins. Lists and tables go on behind blank lines. */
function settledEnd(text, from) {
  let fence = null;
  let end = from;
  let at = from;
  let last = "";
  while (at < text.length) {
    const stop = text.indexOf("\n", at);
    if (stop < 0) break;
    const line = text.slice(at, stop);
    const found = FENCE.exec(line);
    if (fence !== null) {
      if (found !== null && found[1].startsWith(fence) && found[2] === "") fence = null;
    } else if (found !== null) fence = found[1];
    else if (line.trim() === "" && !/^\s|^([-*+]|\d{1,9}[.)])\s/.test(last)) end = stop + 1;
    if (line.trim() !== "") last = line;
    at = stop + 1;
  }
  return end;
}

function blocks(lines, depth) {
  const made = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    if (line.trim() === "") {
      at += 1;
      continue;
    }
    const reader = depth < DEEPEST ? READERS.find(({ begins }) => begins(line, lines[at + 1])) : undefined;
    const [node, next] = (reader ?? PARAGRAPH).read(lines, at, depth);
    made.push(node);
    at = next;
  }
  return made;
}

/** Return the first line from `at` on for which `ends` holds, or the end. */
function until(lines, at, ends) {
  while (at < lines.length && !ends(lines[at], at)) at += 1;
  return at;
}

function readFence(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]);
  const end = until(lines, at + 1, (line) => {
    const found = FENCE.exec(line);
    return found !== null && found[1].startsWith(mark) && found[2] === "";
  });
  const code = lines.slice(at + 1, end).join("\n");
  const copy = button("Copy", () => offer("Code", code, copy), { "aria-label": "Copy this code" });
  const head = el("figcaption", {}, el("span", {}, language || "code"), copy);
  const shown = el("pre", { tabindex: "0" }, el("code", {}, code));
  return [el("figure", { class: "code" }, head, shown), end + 1];
}

function readHeading(lines, at, depth) {
  const [, marks, text] = HEADING.exec(lines[at]);
  // The page's own headings come first: those of an answer begin two levels below.
  return [el(`h${Math.min(6, marks.length + 2)}`, {}, ...inline(text, depth)), at + 1];
}

function readQuote(lines, at, depth) {
  const end = until(lines, at, (line) => !QUOTE.test(line));
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [el("blockquote", {}, ...blocks(inner, depth + 1)), end];
}

function readList(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const isNumbered = /\d/.test(mark);
  const list = el(isNumbered ? "ol" : "ul", { start: isNumbered && parseInt(mark) !== 1 ? parseInt(mark) : null });
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (found === null || found[1].length !== indent.length || /\d/.test(found[2]) !== isNumbered) break;
    const width = found[0].length;
    const end = until(lines, at + 1, (line, index) => {
      if (line.trim() === "") return !/^\s+\S/.test(lines[index + 1] ?? "") && !isItem(lines[index + 1], indent);
      const next = ITEM.exec(line);
      return next !== null ? next[1].length <= indent.length : lines[index - 1].trim() === "" && !/^\s/.test(line);
    });
    const inner = [lines[at].slice(width), ...lines.slice(at + 1, end).map((line) => unindented(line, width))];
    const content = blocks(inner, depth + 1);
    // An item of one paragraph is that paragraph's content.
    const isTight = content.length > 0 && content[0].tagName === "P";
    list.append(el("li", {}, ...(isTight ? [...content[0].childNodes, ...content.slice(1)] : content)));
    at = end;
  }
  return [list, at];
}

function isItem(line, indent) {
  const found = line === undefined ? null : ITEM.exec(line);
  return found !== null && found[1].length === indent.length;
}

function unindented(line, width) {
  return line.slice(Math.min(width, line.length - line.trimStart().length));
}

function readTable(lines, at, depth) {
  const end = until(lines, at + 2, (line) => !line.includes("|"));
  const row = (line, kind) =>
    el("tr", {}, ...cells(line).map((cell) => el(kind, kind === "th" ? { scope: "col" } : {}, ...inline(cell, depth))));
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  const table = el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, ...body));
  return [el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" }, table), end];
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const READERS = [
  { begins: (line) => FENCE.test(line), read: readFence },
  { begins: (line) => HEADING.test(line), read: readHeading },
  { begins: (line) => RULE.test(line), read: (lines, at) => [el("hr"), at + 1] },
  { begins: (line) => QUOTE.test(line), read: readQuote },
  { begins: (line) => ITEM.test(line), read: readList },
  { begins: (line, next) => line.includes("|") && next !== undefined && DIVIDER.test(next), read: readTable },
];

const PARAGRAPH = {
  read(lines, at, depth) {
    const isOver = (line, index) =>
      index > at && (line.trim() === "" || READERS.some(({ begins }) => begins(line, lines[index + 1])));
    const end = until(lines, at, isOver);
    return [el("p", {}, ...inline(lines.slice(at, end).join("\n").trim(), depth)), end];
  },
};

/** Return the text of a paragraph as text nodes, emphasis, code and links. */
function inline(text, depth) {
  if (depth >= DEEPEST || text.length > LONGEST_INLINE) return [text];
  const made = [];
  let plain = "";
  for (let at = 0; at < text.length; ) {
    const found = READ[text[at]]?.(text, at, depth) ?? null;
    if (found === null) {
      plain += text[at];
      at += 1;
      continue;
    }
    if (plain !== "") made.push(plain);
    plain = "";
    made.push(found[0]);
    at = found[1];
  }
  if (plain !== "") made.push(plain);
  return made;
}

function readEscape(text, at) {
  const found = ESCAPED.exec(text.slice(at, at + 2));
  return found === null ? null : [found[1], at + 2];
}

function readCode(text, at) {
  const [mark] = /^`+/.exec(text.slice(at));
  const end = text.indexOf(mark, at + mark.length);
  if (end < 0) return null;
  const inner = text.slice(at + mark.length, end);
  const isPadded = /^ .*[^ ].* $/.test(inner);
  return [el("code", {}, isPadded ? inner.slice(1, -1) : inner), end + mark.length];
}

function readPair(text, at, depth) {
  for (const [mark, tag] of PAIRS) {
    if (!text.startsWith(mark, at)) continue;
    const from = at + mark.length;
    const end = text.indexOf(mark, from + 1);
    const inWord = mark[0] === "_" && (/\w/.test(text[at - 1] ?? "") || /\w/.test(text[end + mark.length] ?? ""));
    if (end < 0 || inWord || /\s/.test(text[from]) || /\s/.test(text[end - 1])) continue;
    return [el(tag, {}, ...inline(text.slice(from, end), depth + 1)), end + mark.length];
  }
  return null;
}

function readLink(text, at, depth) {
  const from = text[at] === "!" ? at + 1 : at;
  const middle = text.indexOf("](", from);
  const end = middle < 0 ? -1 : text.indexOf(")", middle);
  if (text[from] !== "[" || end < 0 || text.slice(from + 1, middle).includes("[")) return null;
  const label = text.slice(from + 1, middle);
  const url = safeUrl(text.slice(middle + 2, end).trim().split(/\s/)[0]);
  if (url === null) return null;
  // A picture would tell its site that it was looked at, so it is a link as well.
  const content = from > at ? [`picture: ${label || url}`] : inline(label, depth + 1);
  return [link(url, content), end + 1];
}

function readBareLink(text, at) {
  const found = /\w/.test(text[at - 1] ?? "") ? null : BARE_LINK.exec(text.slice(at, at + 2000));
  const url = found === null ? null : safeUrl(found[0]);
  return url === null ? null : [link(url, [found[0]]), at + found[0].length];
}

function link(url, content) {
  return el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...content);
}

/** Return an address that a click may lead to, else null: none that runs code or stays on this server. */
export function safeUrl(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

const READ = {
  "\\": readEscape,
  "`": readCode,
  "*": readPair,
  _: readPair,
  "~": readPair,
  "[": readLink,
  "!": readLink,
  h: readBareLink,
};
