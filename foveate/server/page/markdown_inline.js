/**
 * Inline Markdown to nodes: code, bold, italics, strike-through, links, line breaks. Owns the scan of one paragraph.
 * Promises that text is only ever text: links go to http, https and mailto alone, pictures become links (an address
 * that is fetched unasked would tell its owner what was read), and HTML shows as it was written.
 */

import { h } from "./dom.js";

const MAX_DEPTH = 8;
const MARKS = [
  ["***", "strong"],
  ["___", "strong"],
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const SPECIAL = /[\\\n`[!<*_~]|https?:\/\//gi;
const BARE = /^https?:\/\/[^\s<>"'`]+/i;

/** The nodes of a run of text. */
export function inline(text, depth = 0) {
  const out = [];
  const dead = new Set(); // marks that nothing closes from here on: looked for once, not once for each

  let plain = "";
  const flush = () => {
    if (plain) out.push(document.createTextNode(plain));
    plain = "";
  };
  for (let at = 0; at < text.length; ) {
    const next = nextSpecial(text, at);
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const found = special(text, at, depth, dead);
    if (found === null) {
      plain += text[at++];
    } else if (typeof found.node === "string") {
      plain += found.node;
      at = found.end;
    } else {
      flush();
      out.push(found.node);
      at = found.end;
    }
  }
  flush();
  return out;
}

/** Where the next character stands that may mean something. */
function nextSpecial(text, at) {
  SPECIAL.lastIndex = at;
  return SPECIAL.exec(text)?.index ?? text.length;
}

/** Whether an address may stand behind a link; returns it as a URL, or null. */
export function safeUrl(text) {
  try {
    const url = new URL(text.trim());
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null; // relative addresses included: a model does not know what lies beside this page
  }
}

function special(text, at, depth, dead) {
  const char = text[at];
  if (char === "\\") return escaped(text, at);
  if (char === "\n") return { node: h("br"), end: at + 1 };
  if (char === "`") return code(text, at, dead);
  if (depth >= MAX_DEPTH) return null;
  if (char === "[" || (char === "!" && text[at + 1] === "[")) return link(text, at, depth);
  if (char === "h" || char === "H") return bare(text, at);
  if (char === "<") return angled(text, at);
  if (char === "*" || char === "_" || char === "~") return emphasis(text, at, depth, dead);
  return null;
}

function escaped(text, at) {
  const next = text[at + 1];
  if (next === "\n") return { node: h("br"), end: at + 2 };
  return next !== undefined && PUNCTUATION.test(next) ? { node: next, end: at + 2 } : null;
}

function code(text, at, dead) {
  let ticks = 1;
  while (text[at + ticks] === "`") ticks++;
  const mark = "`".repeat(ticks);
  let end = dead.has(mark) ? -1 : text.indexOf(mark, at + ticks);
  while (end >= 0 && text[end + ticks] === "`") {
    let past = end + ticks;
    while (text[past] === "`") past++;
    end = text.indexOf(mark, past);
  }
  if (end < 0) {
    dead.add(mark);
    return { node: mark, end: at + ticks };
  }
  const inside = text.slice(at + ticks, end).replace(/\n/g, " ");
  const trimmed = /^ .*[^ ].* $/.test(inside) ? inside.slice(1, -1) : inside;
  return { node: h("code", {}, trimmed), end: end + ticks };
}

function emphasis(text, at, depth, dead) {
  for (const [mark, name] of MARKS) {
    if (dead.has(mark) || !text.startsWith(mark, at) || !opens(text, at, mark)) continue;
    const end = closing(text, at, mark);
    if (end === null) {
      dead.add(mark);
      continue;
    }
    const children = inline(text.slice(at + mark.length, end), depth + 1);
    const node = mark.length === 3 ? h("strong", {}, h("em", {}, children)) : h(name, {}, children);
    return { node, end: end + mark.length };
  }
  // The whole run is passed over, so that a wall of asterisks costs one scan and not one per asterisk.
  let end = at;
  while (text[end] === text[at]) end++;
  return { node: text.slice(at, end), end };
}

/** Whether a mark can open an emphasis: something follows it, and an underscore is not in the middle of a word. */
function opens(text, at, mark) {
  const next = text[at + mark.length];
  return next !== undefined && !/\s/.test(next) && !(mark[0] === "_" && at > 0 && WORD.test(text[at - 1]));
}

/** Where the closing mark of an emphasis begins; null when nothing closes it. */
function closing(text, at, mark) {
  const first = at + mark.length;
  const word = mark[0] === "_";
  for (let end = text.indexOf(mark, first + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    const past = end + mark.length;
    if (/\s/.test(text[end - 1]) || text[end - 1] === "\\") continue;
    if (mark.length === 1 && (text[past] === mark || text[end - 1] === mark)) {
      end = Math.max(end, past);
      continue;
    }
    if (word && past < text.length && WORD.test(text[past])) continue;
    return end;
  }
  return null;
}

function link(text, at, depth) {
  const open = text[at] === "!" ? at + 1 : at;
  const middle = matching(text, open, "[", "]");
  if (middle === null || text[middle + 1] !== "(") return null;
  const end = matching(text, middle + 1, "(", ")");
  if (end === null) return null;
  const target = text.slice(middle + 2, end).trim();
  const address = target.replace(/\s+["'(].*$/s, "").replace(/^<(.*)>$/, "$1");
  const label = text.slice(open + 1, middle);
  const url = safeUrl(address);
  if (url === null) return null;
  return { node: anchor(url, label.trim() ? inline(label, depth + 1) : [address]), end: end + 1 };
}

/** The index of the bracket that closes the one at `at`; null when there is none within reach. */
function matching(text, at, open, close) {
  let level = 0;
  const limit = Math.min(text.length, at + 4000);
  for (let i = at; i < limit; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === open) level++;
    else if (text[i] === close && --level === 0) return i;
  }
  return null;
}

function bare(text, at) {
  if (at > 0 && WORD.test(text[at - 1])) return null;
  const found = BARE.exec(text.slice(at, at + 2048));
  if (!found) return null;
  let address = found[0].replace(/[.,;:!?*_~]+$/, "");
  if (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1);
  const url = safeUrl(address);
  return url === null ? null : { node: anchor(url, [address]), end: at + address.length };
}

function angled(text, at) {
  const rest = /^<br\s*\/?>/i.exec(text.slice(at, at + 8));
  if (rest) return { node: h("br"), end: at + rest[0].length };
  const found = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(text.slice(at, at + 2048));
  const url = found && safeUrl(found[1]);
  return url ? { node: anchor(url, [found[1]]), end: at + found[0].length } : null;
}

function anchor(url, children) {
  return h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
