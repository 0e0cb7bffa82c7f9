/**
 * What stands where nothing was asked yet: what this is, and the bundled pictures to try with one click. Owns the
 * examples. Hands a try to its owner as a question.
 */

import { examplePicture, examples } from "./api.js";
import { h } from "./dom.js";
import { readPicture } from "./pictures.js";

const TOGETHER = 4;
const TOGETHER_QUESTION = "What are the titles of the charts?";

export class Welcome {
  #try;
  #found = [];
  model = null;

  /** `onTry({text, pictures})` is called with the question of the example that was chosen. */
  constructor(onTry) {
    this.#try = onTry;
  }

  async load() {
    this.#found = await examples();
  }

  /** The nodes. */
  view() {
    const vision = this.model?.vision ?? true;
    const what = vision
      ? "Drop, paste or choose pictures and ask about them. Each answer shows how reading your pictures and thinking about them went hand in hand."
      : "The model served here reads text only.";
    const head = [h("h2", { class: "display" }, vision ? "Ask about pictures" : "Ask"), h("p", { class: "lead" }, what)];
    return h("section", { class: "welcome" }, head, this.#found.length && vision ? this.#tries() : null);
  }

  #tries() {
    const cards = this.#found.map(({ file, question }) => card([file], question, () => this.#begin([file], question)));
    const files = spread(this.#found.map(({ file }) => file), TOGETHER);
    if (files.length > 1) cards.unshift(card(files, TOGETHER_QUESTION, () => this.#begin(files, TOGETHER_QUESTION)));
    return [h("h3", {}, "Or try one of these"), h("ul", { class: "tries" }, cards)];
  }

  async #begin(files, text) {
    const read = async (file) => readPicture(await examplePicture(file), file);
    this.#try({ text, pictures: await Promise.all(files.map(read)) });
  }
}

function card(files, question, onClick) {
  const images = files.map((file) => h("img", { src: `/examples/${encodeURIComponent(file)}`, alt: "", loading: "lazy" }));
  const many = files.length > 1 ? h("small", {}, `${files.length} pictures`) : null;
  const frame = h("span", { class: files.length > 1 ? "try-pictures many" : "try-pictures" }, images);
  const props = { type: "button", class: "try", on: { click: onClick } };
  return h("li", { class: files.length > 1 ? "wide" : null }, h("button", props, frame, h("span", { class: "try-words" }, question, many)));
}

/** So many of a list, evenly over it. */
function spread(list, count) {
  if (list.length <= count) return list;
  return Array.from({ length: count }, (_, i) => list[Math.floor((i * list.length) / count)]);
}
