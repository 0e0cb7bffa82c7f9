/**
 * One message on the page: a question with its pictures, or an answer with its timeline, reasoning, words and how it
 * ended. Owns their nodes and what may be done with each. Follows its message when told to and changes nothing in it.
 */

import { button, copyText, fill, h, icon, iconButton } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { urlOf } from "./pictures.js";
import { everyFrame } from "./ticker.js";
import { Timeline } from "./timeline.js";
import { fromTimings } from "./timing.js";

const ENDS = {
  length: "The answer reached its longest length.",
  stopped: "Stopped.",
};

/** A question. `act` holds `blob(id)`, `show(picture, blob)` and `edit()`; `last`: whether it may be edited. */
export function questionView(message, { act, last }) {
  const pictures = message.pictures.map((picture, index) => thumb(picture, index, act));
  const bubble = message.text ? h("div", { class: "bubble" }, message.text) : null;
  const tools = h(
    "div",
    { class: "tools" },
    message.text ? copyButton(() => message.text) : null,
    last ? iconButton("edit", "Edit this question", act.edit, { class: "icon-button small edit" }) : null,
  );
  const strip = pictures.length ? h("div", { class: "strip" }, pictures) : null;
  const name = h("h2", { class: "off-screen" }, "You asked");
  return h("article", { class: "question" }, name, strip, bubble, tools);
}

function thumb(picture, index, act) {
  const label = `Picture ${index + 1}: ${picture.name}`;
  const image = h("img", { alt: "", width: picture.width, height: picture.height });
  const node = h("button", { type: "button", class: "strip-thumb", "aria-label": label, title: picture.name }, image);
  act.blob(picture.id).then((blob) => {
    if (!blob) return;
    image.src = urlOf(blob);
    node.addEventListener("click", () => act.show(picture, blob));
  });
  return node;
}

function copyButton(text) {
  const node = iconButton("copy", "Copy", async () => {
    const copied = await copyText(text());
    fill(node, icon(copied ? "check" : "close"));
    node.setAttribute("aria-label", copied ? "Copied" : "Not copied");
    setTimeout(() => {
      fill(node, icon("copy"));
      node.setAttribute("aria-label", "Copy");
    }, 1500);
  }, { class: "icon-button small" });
  return node;
}

export class AnswerView {
  #message;
  #act;
  #last;
  #run;
  #timeline = null;
  #stopDrawing = null;
  #place = h("div", { class: "timeline-place" });
  #reasoning = h("div", { class: "markdown" });
  #folded;
  #words = h("div", { class: "markdown" });
  #waiting = h("p", { class: "waiting" });
  #end = h("div", { class: "ending" });
  #tools = h("div", { class: "tools" });
  #stale = false;
  #cost_ms = 0;

  /** `run`: what fills the message, or null; `thumbs()`: addresses of the pictures of the request, in order. */
  constructor(message, { act, last, run, thumbs }) {
    this.#message = message;
    this.#act = act;
    this.#last = last;
    this.#run = run;
    const summary = h("summary", {}, "Reasoning");
    this.#folded = h("details", { class: "reasoning", hidden: true }, summary, this.#reasoning);
    const name = h("h2", { class: "off-screen" }, "Answer");
    const parts = [name, this.#place, this.#folded, this.#waiting, this.#words, this.#end, this.#tools];
    this.node = h("article", { class: "answer" }, parts);
    if (run || message.timings || message.seen) this.#begin(thumbs);
    this.update();
  }

  /** The message changed: draw it soon, so that drawing takes a quarter of the time at most however long it is. */
  update() {
    if (this.#stale) return;
    this.#stale = true;
    const draw = () => {
      const start_ms = performance.now();
      this.#stale = false;
      this.#draw();
      this.#cost_ms = performance.now() - start_ms;
    };
    if (this.#cost_ms < 4) requestAnimationFrame(draw);
    else setTimeout(draw, 3 * this.#cost_ms);
  }

  /** Stop drawing; the view is taken off the page. */
  close() {
    this.#stopDrawing?.();
  }

  async #begin(thumbs) {
    this.#timeline = new Timeline(await thumbs());
    if (this.#message.state === "running") {
      this.#stopDrawing = everyFrame(() => this.#timeline.show(this.#run.view()));
    }
    this.#place.append(this.#timeline.node);
    this.update();
  }

  #draw() {
    const message = this.#message;
    const running = message.state === "running";
    renderMarkdown(this.#words, message.text);
    this.#folded.hidden = !message.reasoning;
    if (message.reasoning) renderMarkdown(this.#reasoning, message.reasoning);
    this.#words.classList.toggle("streaming", running && message.text !== "");
    this.node.setAttribute("aria-busy", `${running}`);
    this.#waiting.hidden = !running || message.text !== "";
    this.#waiting.textContent = message.reasoning ? "Thinking …" : message.images > 0 ? "Looking …" : "Reading …";
    if (running) return;
    this.#finish();
  }

  #finish() {
    const message = this.#message;
    this.close();
    const view = message.timings ? fromTimings(message.timings, message.tokens) : message.seen;
    if (this.#timeline && view) this.#timeline.show(view);
    else this.#place.replaceChildren();
    fill(this.#end, this.#ending());
    const again = this.#last && message.state !== "failed";
    fill(
      this.#tools,
      message.text ? copyButton(() => message.text) : null,
      again ? iconButton("again", "Answer again", this.#act.again, { class: "icon-button small again" }) : null,
    );
  }

  #ending() {
    const { state, finish, error, text } = this.#message;
    if (state === "failed") return errorView(error, this.#last ? this.#act.again : null);
    const words = state === "stopped" ? ENDS.stopped : ENDS[finish];
    if (words) return h("p", { class: "quiet" }, words);
    return text ? null : h("p", { class: "quiet" }, "The answer is empty.");
  }
}

/** Why there is no answer, in the server's own words, with the way on. */
function errorView(error, again) {
  const titles = { 0: "No connection", 400: "The server refused this request", 401: "The server asks for a key" };
  const busy = error.status === 503;
  const title = busy ? "The server is busy" : (titles[error.status] ?? `The answer failed (${error.status})`);
  const node = h("div", { class: "error", role: "alert" }, h("strong", {}, title), h("p", {}, error.message));
  if (error.param) node.append(h("p", { class: "quiet" }, "It is about ", h("code", {}, error.param), "."));
  if (again) node.append(retryButton(again, busy ? error.retryAfter : null));
  return node;
}

function retryButton(again, wait_s) {
  const node = button("Try again", again, { class: "button again" });
  const until_ms = performance.now() + (wait_s ?? 0) * 1000;
  const count = () => {
    const left = Math.ceil((until_ms - performance.now()) / 1000);
    node.disabled = left > 0;
    node.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left > 0 && (node.isConnected || left >= wait_s)) setTimeout(count, 250);
  };
  count();
  return node;
}
