/**
 * The open conversation on the page. Owns the list of its messages' views and the scrolling: it follows an answer as
 * long as its reader stands at the end. Draws what the session holds and changes nothing in it.
 */

import { fill, h } from "./dom.js";
import { AnswerView, questionView } from "./message_view.js";
import { urlOf } from "./pictures.js";

const NEAR_PX = 120;

export class ChatView {
  #session;
  #act;
  #empty;
  #scroller;
  #list = h("div", { class: "messages" });
  #answers = new Map();

  /** `act`: what may be done with a message; `empty()`: what stands where nothing was asked yet; `scroller`: who scrolls. */
  constructor({ session, act, empty, scroller }) {
    this.#session = session;
    this.#act = { ...act, blob: (id) => session.pictureBlob(id) };
    this.#empty = empty;
    this.#scroller = scroller;
    this.node = this.#list;
    // Whatever grows (words, lanes, a picture that loads), a reader at the end stays there.
    new ResizeObserver(() => this.#follow()).observe(this.#list);
    scroller.addEventListener("scroll", () => this.#note(), { passive: true });
  }

  #atEnd = true;

  #note() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    this.#atEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }

  #follow() {
    if (this.#atEnd) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** Draw the open conversation anew. */
  render() {
    for (const view of this.#answers.values()) view.close();
    this.#answers.clear();
    const { messages } = this.#session.current;
    if (messages.length === 0) {
      this.#atEnd = false;
      fill(this.#list, this.#empty());
      this.#scroller.scrollTop = 0;
      return;
    }
    fill(this.#list, messages.map((message, index) => this.#view(message, index, messages)));
    this.#atEnd = true;
    this.#follow();
  }

  /** An answer changed. */
  update(message) {
    this.#answers.get(message.id)?.update();
  }

  #view(message, index, messages) {
    if (message.role === "user") {
      const last = index === messages.findLastIndex(({ role }) => role === "user") && !this.#session.running;
      return questionView(message, { act: this.#act, last });
    }
    const view = new AnswerView(message, {
      act: this.#act,
      last: index === messages.length - 1,
      run: this.#session.runOf(message),
      thumbs: () => this.#thumbs(messages.slice(0, index)),
    });
    this.#answers.set(message.id, view);
    return view.node;
  }

  /** Addresses of every picture of the request that these messages made, in its order. */
  async #thumbs(messages) {
    const ids = messages.flatMap((message) => (message.pictures ?? []).map(({ id }) => id));
    const blobs = await Promise.all(ids.map((id) => this.#session.pictureBlob(id)));
    return blobs.map((blob) => (blob ? urlOf(blob) : null));
  }
}
