/**
 * The pictures of the question being written: thumbnails in order, to be moved and removed by pointer and by keyboard.
 * Owns their order. Promises that every change is said aloud. Knows neither files nor requests.
 */

import { fill, h, icon } from "./dom.js";
import { urlOf } from "./pictures.js";

const DRAG_PX = 6;

export class Tray {
  #say;
  #changed;
  #drag = null;

  /** `say(sentence)` announces; `changed()` is called after each change. */
  constructor({ say, changed }) {
    this.#say = say;
    this.#changed = changed;
    this.pictures = [];
    this.node = h("ol", { class: "tray", "aria-label": "Pictures of the question", hidden: true });
  }

  /** Put in these records instead of what is there. */
  set(pictures) {
    this.pictures = [...pictures];
    this.#render();
  }

  add(picture) {
    this.set([...this.pictures, picture]);
  }

  #remove(index) {
    const [gone] = this.pictures.splice(index, 1);
    this.#render();
    this.#say(`Removed ${gone.name}; ${this.pictures.length} left`);
    this.#focus(Math.min(index, this.pictures.length - 1));
  }

  #move(from, to) {
    if (to < 0 || to >= this.pictures.length || from === to) return;
    const [picture] = this.pictures.splice(from, 1);
    this.pictures.splice(to, 0, picture);
    this.#render();
    this.#say(`${picture.name} is now picture ${to + 1} of ${this.pictures.length}`);
    this.#focus(to);
  }

  #focus(index) {
    this.node.children[index]?.querySelector("button").focus();
  }

  #render() {
    this.node.hidden = this.pictures.length === 0;
    fill(this.node, this.pictures.map((picture, index) => this.#item(picture, index)));
    this.#changed();
  }

  #item(picture, index) {
    const place = `Picture ${index + 1} of ${this.pictures.length}: ${picture.name}`;
    const keys = "Shift and arrow keys move it, Delete removes it";
    const thumb = h(
      "button",
      {
        type: "button",
        class: "thumb",
        "aria-label": `${place}. ${keys}`,
        title: `${picture.name}${picture.width ? `, ${picture.width} × ${picture.height}` : ""}\n${keys}`,
        on: { keydown: (event) => this.#key(event, index), pointerdown: (event) => this.#grab(event, index) },
      },
      h("img", { src: urlOf(picture.blob), alt: "", draggable: "false" }),
      h("span", { class: "thumb-number", "aria-hidden": "true" }, `${index + 1}`),
    );
    const remove = h(
      "button",
      { type: "button", class: "thumb-remove", "aria-label": `Remove picture ${index + 1}`, on: { click: () => this.#remove(index) } },
      icon("close"),
    );
    return h("li", {}, thumb, remove);
  }

  #key(event, index) {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (step) {
      event.preventDefault();
      if (event.shiftKey) this.#move(index, index + step);
      else this.#focus(Math.max(0, Math.min(index + step, this.pictures.length - 1)));
    } else if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      this.#remove(index);
    }
  }

  /** Pointer events rather than drag and drop, which touch screens do not have. */
  #grab(event, index) {
    if (event.button !== 0 || this.pictures.length < 2) return;
    const item = event.currentTarget.parentElement;
    const start = { x: event.clientX, y: event.clientY };
    const controller = new AbortController();
    const { signal } = controller;
    const move = (at) => {
      const [dx, dy] = [at.clientX - start.x, at.clientY - start.y];
      if (!this.#drag && Math.hypot(dx, dy) < DRAG_PX) return;
      this.#drag = item;
      item.classList.add("dragged");
      item.style.setProperty("transform", `translate(${dx}px, ${dy}px)`);
      this.#mark(this.#target(at, item));
    };
    const drop = (at) => {
      controller.abort();
      if (!this.#drag) return;
      const to = this.#target(at, item);
      this.#drag = null;
      item.classList.remove("dragged");
      item.style.removeProperty("transform");
      this.#mark(null);
      if (to !== null && at.type === "pointerup") this.#move(index, to);
    };
    addEventListener("pointermove", move, { signal });
    addEventListener("pointerup", drop, { signal });
    addEventListener("pointercancel", drop, { signal });
  }

  /** The place under the pointer, or null. */
  #target(at, dragged) {
    const items = [...this.node.children];
    const found = items.findIndex((item) => {
      if (item === dragged) return false;
      const box = item.getBoundingClientRect();
      return at.clientX >= box.left && at.clientX <= box.right && at.clientY >= box.top && at.clientY <= box.bottom;
    });
    return found < 0 ? null : found;
  }

  #mark(index) {
    [...this.node.children].forEach((item, i) => item.classList.toggle("target", i === index));
  }
}
