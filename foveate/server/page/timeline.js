/**
 * The timeline of one request: a lane per image with its decode, encode and prefill, a lane for the answer, on one
 * axis, and behind them the stretches in which the encoder and the model worked at once. Owns the drawing and its words
 * for those who do not see it. Takes views of `timing.js` and refuses to know where they come from.
 */

import { fill, h } from "./dom.js";
import { seconds, STAGES, together } from "./timing.js";

const LEGEND = [
  ["fetch", "fetch"],
  ["decode", "decode"],
  ["encode", "encode"],
  ["prefill", "prefill"],
  ["generate", "generate"],
  ["both", "encoder and model at once"],
];
// An answer this much longer than the way to it would press the lanes together, so the axis ends before it does.
const LONG_ANSWER = 3;

export class Timeline {
  #thumbs;
  #lanes = [];
  #answer = bar("generate");
  #bands = h("div", { class: "tl-bands" });
  #axis = h("div", { class: "tl-axis", "aria-hidden": "true" });
  #body = h("div", { class: "tl-body", "aria-hidden": "true" });
  #facts = h("dl", { class: "tl-facts" });
  #numbers = h("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": "Times of each image" });
  #details;
  #legend = h("ul", { class: "tl-legend", "aria-hidden": "true" });
  #zoom;
  #zoomed = null;
  #view = null;

  /** `thumbs`: for each image an address to show it by, or null. */
  constructor(thumbs = []) {
    this.#thumbs = thumbs;
    this.#zoom = h("button", { type: "button", class: "tl-zoom", hidden: true, on: { click: () => this.#toggle() } });
    this.#details = h("details", { class: "tl-numbers" }, h("summary", {}, "Numbers"), this.#numbers);
    this.#details.addEventListener("toggle", () => this.#table());
    const foot = h("div", { class: "tl-foot" }, this.#legend, this.#zoom);
    this.node = h("figure", { class: "timeline" }, this.#body, this.#facts, foot, this.#details);
  }

  /** Draw a view; call it as often as there is a new one. */
  show(view) {
    this.#view = view;
    if (this.#lanes.length !== view.images.length || !this.#body.firstChild) this.#build(view.images.length);
    this.#explain(view);
    const long = !view.running && view.images.length > 0 && view.end_s > (1 + LONG_ANSWER) * view.first_s;
    this.#zoom.hidden = !long;
    const zoomed = long && (this.#zoomed ?? true);
    this.#zoom.textContent = zoomed ? "Show the whole answer" : "Show the way to the first token";
    // While it runs the axis grows in steps, so that bars stand still between them.
    const span = zoomed ? view.first_s * 1.15 : view.running ? roomy(view.end_s) : view.end_s;
    this.#draw(view, { start_s: view.start_s, span: Math.max(span - view.start_s, 1e-3), now_s: view.end_s });
    this.node.classList.toggle("running", view.running);
    this.#sums(view);
  }

  #toggle() {
    this.#zoomed = !(this.#zoomed ?? true);
    this.show(this.#view);
  }

  #build(count) {
    this.#lanes = Array.from({ length: count }, () => Object.fromEntries(STAGES.map((name) => [name, bar(name)])));
    const lanes = this.#lanes.map((bars, i) => lane(label(i, this.#thumbs[i]), STAGES.map((name) => bars[name])));
    const answer = lane(h("span", { class: "tl-name" }, "answer"), [this.#answer]);
    const stage = h("div", { class: "tl-lanes" }, this.#bands, ...lanes, answer);
    fill(this.#body, stage, this.#axis);
  }

  /** The legend: only what can be seen in these lanes. */
  #explain({ images }) {
    const fetched = images.some(({ fetch }) => fetch);
    // One image has no other that could be encoded beside it.
    const may = { generate: true, both: images.length > 1, fetch: fetched };
    const shown = LEGEND.filter(([kind]) => may[kind] ?? images.length > 0);
    if (this.#legend.childElementCount === shown.length) return;
    fill(this.#legend, shown.map(([kind, name]) => h("li", {}, h("i", { class: `tl-key ${kind}` }), name)));
  }

  #draw(view, axis) {
    view.images.forEach((image, i) => {
      for (const name of STAGES) place(this.#lanes[i][name], image[name], axis);
    });
    place(this.#answer, view.first_s ? [view.first_s, view.running ? null : view.end_s] : null, axis);
    const bands = together(view);
    while (this.#bands.childNodes.length > bands.length) this.#bands.lastChild.remove();
    while (this.#bands.childNodes.length < bands.length) this.#bands.append(h("span", { class: "tl-band" }));
    bands.forEach((band, i) => place(this.#bands.childNodes[i], band, axis));
    ticks(this.#axis, axis);
  }

  #sums(view) {
    const key = JSON.stringify(view.facts);
    if (this.#facts.dataset.key !== key) {
      this.#facts.dataset.key = key;
      fill(this.#facts, view.facts.map(fact));
    }
    const words = sentence(view);
    if (!view.running && this.node.getAttribute("aria-label") !== words) this.node.setAttribute("aria-label", words);
    this.#details.hidden = view.images.length === 0 || view.source === "browser";
    this.#table();
  }

  #table() {
    if (!this.#details.open || this.#view === null) return;
    const head = ["image", "rows", ...STAGES].map((name) => h("th", { scope: "col" }, name));
    const rows = this.#view.images.map((image, i) =>
      h("tr", {}, h("th", { scope: "row" }, `${i + 1}`), h("td", {}, `${image.rows ?? "–"}`), STAGES.map((name) => times(image[name]))),
    );
    fill(this.#numbers, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  }
}

function bar(kind) {
  return h("span", { class: `tl-bar ${kind}`, hidden: true });
}

function lane(name, bars) {
  return h("div", { class: "tl-lane" }, name, h("div", { class: "tl-track" }, bars));
}

function label(index, thumb) {
  const picture = thumb ? h("img", { src: thumb, alt: "", width: "22", height: "22", loading: "lazy" }) : null;
  return h("span", { class: "tl-name" }, picture, thumb ? `${index + 1}` : `image ${index + 1}`);
}

function place(node, stretch, { start_s, span, now_s }) {
  node.hidden = stretch === null || stretch[0] === null || stretch[0] >= start_s + span;
  if (node.hidden) return;
  const end = Math.min(stretch[1] ?? now_s, start_s + span);
  node.style.setProperty("left", `${(100 * (stretch[0] - start_s)) / span}%`);
  node.style.setProperty("width", `${(100 * Math.max(end - stretch[0], 0)) / span}%`);
  node.classList.toggle("open", stretch[1] === null);
  node.classList.toggle("supposed", stretch.supposed === true);
  node.classList.toggle("cut", (stretch[1] ?? now_s) > start_s + span);
}

/** The next round length of an axis: 1, 2 or 5 times a power of ten, with the present in its first nine tenths. */
function roomy(now_s) {
  const wanted = Math.max(now_s / 0.9, 0.5);
  const base = 10 ** Math.floor(Math.log10(wanted));
  return [1, 1.5, 2, 3, 5, 7.5, 10].map((factor) => factor * base).find((span) => span >= wanted);
}

function ticks(node, { start_s, span }) {
  const step = stepOf(span);
  const key = `${start_s}:${step}:${span.toFixed(4)}`;
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  const marks = [];
  for (let i = Math.ceil(start_s / step); i * step <= start_s + span * 1.0001; i++) {
    const at = i * step;
    const text = step >= 1 ? `${at}` : at.toFixed(step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3);
    const left = (100 * (at - start_s)) / span;
    // A number must not stand out of its frame.
    const edge = left < 1 ? "first" : left > 96 ? "last" : null;
    marks.push(h("span", { class: edge, style: { left: `${left}%` } }, i === 0 ? "0 s" : text));
  }
  fill(node, marks);
}

function stepOf(span) {
  const rough = span / 5;
  const base = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * base).find((step) => step >= rough);
}

function fact({ name, value, more, main }) {
  const text = more ? h("small", {}, ` ${more}`) : null;
  return h("div", { class: main ? "main" : null }, h("dt", {}, name), h("dd", {}, value, text));
}

function times(stretch) {
  if (stretch === null) return h("td", {}, "–");
  const length = stretch[1] === null ? "running" : seconds(stretch[1] - stretch[0]);
  return h("td", {}, length, h("small", {}, ` at ${seconds(stretch[0])}`));
}

function sentence(view) {
  const facts = view.facts.map((fact) => `${fact.name} ${fact.value}${fact.more ? ` (${fact.more})` : ""}`);
  const images = view.images.length;
  return `Timeline${images ? ` of ${images} ${images === 1 ? "image" : "images"}` : ""}: ${facts.join(", ")}`;
}
