/**
 * What the server does, live: a slim panel with slots, key/value memory, image rows and queue, and behind it every
 * request, running and recent, each with its timeline. Owns their drawing from snapshots of the status feed, of which
 * any part may be missing. Knows nothing of conversations.
 */

import { fill, h } from "./dom.js";
import { openDialog } from "./dialogs.js";
import { everyFrame } from "./ticker.js";
import { Timeline } from "./timeline.js";
import { fromStatus, fromTimings, seconds } from "./timing.js";

const RECENT = 8;
const STATES = {
  prepare: "being prepared", queued: "waiting", encode: "waits for pictures", prefill: "reading", generate: "answering",
  stop: "finished", length: "finished at its longest length", abort: "ended by its client", failed: "failed",
};

const METERS = [
  { name: "slots", help: "requests that run at once", read: ({ slots }) => used(slots?.used, slots?.total, "count") },
  { name: "memory", help: "key/value memory in use", read: ({ kv }) => used(kv?.used, kv?.pages, "share") },
  { name: "image rows", help: "encoded picture rows held", read: ({ image_rows: rows }) => used(rows?.used, rows?.total, "share") },
  { name: "queue", help: "requests waiting", read: ({ queue }) => used(queue?.waiting, null, "count") },
];

function used(value, total, kind) {
  if (!Number.isFinite(value)) return null;
  const share = total > 0 ? Math.min(1, value / total) : null;
  // A little is not nothing.
  const percent = share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(100 * (share ?? 0))} %`;
  const text = kind === "share" && share !== null ? percent : total > 0 ? `${value}/${total}` : `${value}`;
  return { share, text, value, total };
}

export class ServerPanel {
  #feed;
  #meters;

  /** `node` is the button that becomes the panel. */
  constructor({ feed, node }) {
    this.#feed = feed;
    this.#meters = METERS.map(meter);
    fill(node, this.#meters.map(({ box }) => box));
    node.addEventListener("click", () => this.open());
    feed.subscribe((snapshot) => {
      node.hidden = snapshot === null;
      if (snapshot !== null) for (const one of this.#meters) one.show(snapshot);
      const words = this.#meters.map(({ words }) => words).filter(Boolean);
      node.setAttribute("aria-label", `What the server does: ${words.join(", ")}`);
    });
  }

  /** Every request of the server, as it happens. */
  open() {
    if (this.#feed.snapshot === null) return;
    const view = new Requests(this.#feed);
    const dialog = openDialog("What the server does", view.node, { wide: true });
    dialog.addEventListener("close", () => view.close());
  }
}

function meter({ name, help, read }) {
  const value = h("b", {});
  const level = h("i", {});
  const bar = h("span", { class: "meter" }, level);
  const box = h("span", { class: "gauge", title: help }, h("span", { class: "gauge-name" }, name), value, bar);
  const one = { box, words: "" };
  one.show = (snapshot) => {
    const found = read(snapshot);
    box.hidden = found === null;
    if (found === null) return;
    value.textContent = found.text;
    one.words = `${name} ${found.text}`;
    bar.hidden = found.share === null;
    level.style.setProperty("width", `${100 * (found.share ?? 0)}%`);
    box.classList.toggle("busy", found.value > 0);
  };
  return one;
}

class Requests {
  #feed;
  #running = h("div", { class: "requests" });
  #recent = h("div", { class: "requests" });
  #head = h("p", { class: "quiet" });
  #cards = new Map();
  #done = "";
  #stop;

  constructor(feed) {
    this.#feed = feed;
    this.node = h(
      "div",
      { class: "server" },
      this.#head,
      h("h3", {}, "Running"), this.#running,
      h("h3", {}, "Just finished"), this.#recent,
    );
    this.#stop = [feed.subscribe((snapshot) => this.#show(snapshot)), everyFrame(() => this.#move())];
  }

  close() {
    for (const stop of this.#stop) stop();
  }

  #show(snapshot) {
    const { model, version, uptime_s: up } = snapshot ?? {};
    const parts = [model, version && `foveate ${version}`, Number.isFinite(up) && `up ${seconds(up)}`];
    this.#head.textContent = snapshot === null ? "The server cannot be reached." : parts.filter(Boolean).join(" · ");
    const requests = list(snapshot?.requests);
    const ids = new Set(requests.map(({ id }) => id));
    for (const id of this.#cards.keys()) if (!ids.has(id)) this.#cards.delete(id);
    for (const request of requests) {
      if (!this.#cards.has(request.id)) this.#cards.set(request.id, new Card());
      this.#cards.get(request.id).request = request;
    }
    this.#place(this.#running, [...this.#cards.values()].map(({ node }) => node), "Nothing runs.");
    this.#finished(list(snapshot?.recent));
    this.#move();
  }

  #place(node, cards, none) {
    const same = cards.length === node.children.length && cards.every((card, i) => node.children[i] === card);
    if (!same || cards.length === 0) fill(node, cards.length ? cards : h("p", { class: "quiet" }, none));
  }

  #move() {
    for (const card of this.#cards.values()) card.move(this.#feed.elapsed(card.request));
  }

  #finished(recent) {
    const newest = recent.slice(0, RECENT);
    const key = newest.map(({ id }) => id).join();
    if (key === this.#done && this.#recent.firstChild) return;
    this.#done = key;
    this.#place(this.#recent, newest.map(ended), "Nothing has finished yet.");
  }
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

class Card {
  #timeline = new Timeline();
  #head = h("h4", {});
  request = null;

  constructor() {
    this.node = h("section", {}, this.#head, this.#timeline.node);
  }

  move(elapsed_s) {
    const words = title(this.request);
    if (this.#head.textContent !== words) this.#head.textContent = words;
    this.#timeline.show(fromStatus(this.request, elapsed_s));
  }
}

function ended(request) {
  const timeline = new Timeline();
  if (request.timings) {
    const images = request.timings.images ?? request.images ?? [];
    timeline.show(fromTimings({ ...request.timings, images }, request.output_tokens ?? null));
  }
  return h("section", {}, h("h4", {}, title(request)), request.timings ? timeline.node : null);
}

function title({ state, prompt_tokens: prompt, output_tokens: output, images }) {
  const pictures = list(images).length;
  const parts = [
    STATES[state] ?? state,
    pictures > 0 && `${pictures} ${pictures === 1 ? "picture" : "pictures"}`,
    Number.isFinite(prompt) && `${prompt} tokens in`,
    Number.isFinite(output) && `${output} out`,
  ];
  return parts.filter(Boolean).join(" · ");
}
