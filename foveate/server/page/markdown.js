/**
 * Block Markdown to nodes: paragraphs, headings, lists, quotes, tables, fenced code, rules. Owns the cutting of an
 * answer into blocks and redrawing only those that changed while it streams. Promises linear time and bounded nesting
 * whatever a model writes. What stands inside a line is `markdown_inline.js`'s business.
 */

import { button, copyText, h } from "./dom.js";
import { inline } from "./markdown_inline.js";

const MAX_DEPTH = 6;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const DELIMITER = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Draw text into a node; what an earlier call drew there is kept as far as its source is the same. */
export function renderMarkdown(node, text) {
  const blocks = cut(text.replace(/\r\n?/g, "\n").split("\n"));
  const drawn = node.markdownSources ?? [];
  let same = 0;
  while (same < blocks.length && same < drawn.length && blocks[same].source === drawn[same]) same++;
  while (node.childNodes.length > same) node.lastChild.remove();
  node.append(...blocks.slice(same).map((block) => draw(block, 0)));
  node.markdownSources = blocks.map((block) => block.source);
}

/** Cut lines into blocks `{kind, lines, source, …}`. */
function cut(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const block = fence(lines, at) ?? single(lines, at) ?? quote(lines, at) ?? list(lines, at) ?? table(lines, at);
    const found = block ?? paragraph(lines, at);
    found.source = `${found.kind}\n${lines.slice(at, found.end).join("\n")}`;
    blocks.push(found);
    at = found.end;
  }
  return blocks;
}

function fence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  const [, mark, info] = open;
  let end = at + 1;
  const closes = (line) => {
    const text = line.trim();
    return text.length >= mark.length && text === mark[0].repeat(text.length);
  };
  while (end < lines.length && !closes(lines[end])) end++;
  return { kind: "code", language: info.trim().split(/\s+/)[0], lines: lines.slice(at + 1, end), end: end + 1 };
}

function single(lines, at) {
  const heading = HEADING.exec(lines[at]);
  if (heading) return { kind: "heading", level: heading[1].length, lines: [heading[2]], end: at + 1 };
  if (RULE.test(lines[at])) return { kind: "rule", lines: [], end: at + 1 };
  return null;
}

function quote(lines, at) {
  if (!QUOTE.test(lines[at])) return null;
  let end = at + 1;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  return { kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")), end };
}

function indent(line) {
  return line.length - line.trimStart().length;
}

/** A list: items of one indentation and one sort; deeper or lazy lines belong to the item before them. */
function list(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const line = lines[end];
    const item = ITEM.exec(line);
    if (item && item[1].length <= first[1].length + 1 && !RULE.test(line)) {
      if (/\d/.test(item[2]) !== ordered) break;
      items.push({ lines: [line.slice(item[0].length)], width: item[0].length });
    } else if (!line.trim()) {
      if (!continues(lines, end, first[1].length)) break;
      items.at(-1).lines.push("");
    } else if (indent(line) > first[1].length || !starts(line, lines[end - 1])) {
      items.at(-1).lines.push(line.slice(Math.min(indent(line), items.at(-1).width)));
    } else break;
    end++;
  }
  return { kind: "list", ordered, start: ordered ? Number.parseInt(first[2], 10) : 1, items, end };
}

function continues(lines, blank, base) {
  let next = blank;
  while (next < lines.length && !lines[next].trim()) next++;
  return next < lines.length && (indent(lines[next]) > base || ITEM.test(lines[next]));
}

/** Whether a line begins something of its own rather than continuing the text before it. */
function starts(line, before) {
  return !before.trim() || [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));
}

function table(lines, at) {
  const rule = lines[at + 1];
  if (rule === undefined || !lines[at].includes("|") || !rule.includes("-") || !DELIMITER.test(rule)) return null;
  const head = cells(lines[at]);
  const aligns = cells(rule).map((cell) => (/:$/.test(cell) ? (/^:/.test(cell) ? "center" : "end") : "start"));
  if (head.length !== aligns.length) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  return { kind: "table", head, aligns, rows: lines.slice(at + 2, end).map(cells), end };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines, end)) end++;
  return { kind: "paragraph", lines: lines.slice(at, end), end };
}

function begins(lines, at) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(lines[at])) || table(lines, at) !== null;
}

function draw(block, depth) {
  return DRAW[block.kind](block, depth);
}

function nested(lines, depth) {
  if (depth >= MAX_DEPTH) return [h("p", {}, lines.join("\n"))];
  return cut(lines).map((block) => draw(block, depth + 1));
}

const DRAW = {
  paragraph: (block) => h("p", {}, inline(block.lines.map((line) => line.trim()).join("\n"))),
  // An answer's headings stand below the page's own.
  heading: (block) => h(`h${Math.min(block.level + 2, 6)}`, {}, inline(block.lines[0])),
  rule: () => h("hr"),
  quote: (block, depth) => h("blockquote", {}, nested(block.lines, depth)),
  list: (block, depth) => {
    const start = block.ordered && block.start !== 1 ? block.start : null;
    return h(
      block.ordered ? "ol" : "ul",
      { start },
      block.items.map((item) => h("li", {}, tight(nested(item.lines, depth)))),
    );
  },
  table: (block) =>
    h(
      "div",
      { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Table" },
      h(
        "table",
        {},
        h("thead", {}, row("th", block.head, block.aligns)),
        h("tbody", {}, block.rows.map((cells) => row("td", cells, block.aligns))),
      ),
    ),
  code: (block) => {
    const text = block.lines.join("\n");
    const copy = button("Copy", async () => {
      copy.textContent = (await copyText(text)) ? "Copied" : "Not copied";
    });
    return h(
      "figure",
      { class: "code" },
      h("figcaption", {}, h("span", {}, block.language || "text"), copy),
      h("pre", { tabindex: "0" }, h("code", {}, text)),
    );
  },
};

/** An item that is one paragraph is set without the paragraph's space. */
function tight(nodes) {
  if (nodes[0]?.tagName !== "P") return nodes;
  return [...nodes[0].childNodes, ...nodes.slice(1)];
}

function row(name, texts, aligns) {
  const scope = name === "th" ? "col" : null;
  return h("tr", {}, aligns.map((align, i) => h(name, { class: `to-${align}`, scope }, inline(texts[i] ?? ""))));
}
