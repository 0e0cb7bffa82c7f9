/**
 * The question being written: words, pictures, send and stop. Owns the form, the ways pictures get into it (chosen,
 * pasted, dropped) and the limit on them. Hands a finished question to its owner and refuses to know what becomes of it.
 */

import { h, icon, iconButton } from "./dom.js";
import { MAX_IMAGES, pictureFiles, readPicture } from "./pictures.js";
import { Tray } from "./tray.js";

export class Composer {
  #ask;
  #room;
  #say;
  #running = false;
  #vision = true;
  #editing = false;
  #words;
  #file;
  #notice = h("p", { class: "notice", role: "status", hidden: true });
  #banner;
  #send;
  #stop;
  #add;

  /**
   * `ask({text, pictures, editing})` takes a question; `stop()` ends an answer; `room(editing)` tells how many pictures
   * may still be added; `say(sentence)` announces.
   */
  constructor({ ask, stop, room, say }) {
    this.#ask = ask;
    this.#room = room;
    this.#say = say;
    this.tray = new Tray({ say, changed: () => this.#refresh() });
    this.#words = h("textarea", {
      id: "question", rows: "1", "aria-label": "Question", placeholder: "Ask about pictures", enterkeyhint: "send",
      on: { input: () => this.#refresh(), keydown: (event) => this.#key(event) },
    });
    this.#file = h("input", {
      type: "file", accept: "image/*", multiple: true, hidden: true, tabindex: "-1",
      on: { change: () => this.#chosen() },
    });
    this.#add = iconButton("picture", "Add pictures (Alt+U)", () => this.choose());
    this.#stop = iconButton("stop", "Stop the answer (Esc)", stop, { class: "icon-button round stop", hidden: true });
    const props = { type: "submit", class: "icon-button round send", "aria-label": "Send", title: "Send (Enter)" };
    this.#send = h("button", props, icon("send"));
    const cancel = h("button", { type: "button", class: "link", on: { click: () => this.clear() } }, "Cancel");
    this.#banner = h("p", { class: "editing", hidden: true }, "Editing your last question. ", cancel);
    const row = h("div", { class: "composer-row" }, this.#add, this.#words, this.#stop, this.#send);
    this.node = h(
      "form",
      { class: "composer", "aria-label": "Ask", on: { submit: (event) => this.#submit(event) } },
      this.#banner, this.tray.node, row, this.#file, this.#notice,
    );
    this.#listen();
    this.#refresh();
  }

  /** Whether an answer is under way, and whether the model takes pictures. */
  update({ running, vision }) {
    this.#running = running;
    this.#vision = vision;
    this.#add.hidden = !vision;
    this.#words.placeholder = vision ? "Ask about pictures" : "Ask";
    this.#refresh();
  }

  /** Put in a question; `editing` if it replaces the last one. */
  set({ text, pictures }, editing = false) {
    this.#editing = editing;
    this.#words.value = text;
    this.tray.set(pictures);
    this.#note(null);
    this.focus();
  }

  clear() {
    this.set({ text: "", pictures: [] });
  }

  focus() {
    this.#words.focus();
  }

  /** Open the file picker. */
  choose() {
    if (this.#vision) this.#file.click();
  }

  /** Take in picture files, as many as there is room for. */
  async add(files) {
    const room = this.#room(this.#editing) - this.tray.pictures.length;
    const left = files.length - Math.max(room, 0);
    for (const file of files.slice(0, Math.max(room, 0))) {
      this.tray.add(await readPicture(file, file.name));
    }
    if (left > 0) {
      const were = left === 1 ? "1 picture was" : `${left} pictures were`;
      this.#note(`${were} left out: a conversation may hold ${MAX_IMAGES}. Start a new one for more.`);
    } else {
      this.#note(null);
      this.#say(`${this.tray.pictures.length} pictures with the question`);
    }
    this.focus();
  }

  #listen() {
    document.addEventListener("paste", (event) => this.#arrived(event, event.clipboardData));
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      this.#arrived(event, event.dataTransfer);
    });
    document.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files") || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) document.body.classList.remove("dropping");
    });
  }

  #arrived(event, transfer) {
    if (!transfer?.files.length || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    const files = pictureFiles(transfer.files);
    if (!this.#vision) this.#note("The model served here takes no pictures.");
    else if (files.length === 0) this.#note("Only pictures can be added.");
    else this.add(files);
  }

  #chosen() {
    const files = pictureFiles(this.#file.files);
    this.#file.value = "";
    if (files.length) this.add(files);
  }

  #key(event) {
    // While an input method composes, Enter ends a word and not the question.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#submit(event);
  }

  #submit(event) {
    event.preventDefault();
    if (!this.#sendable) return;
    const question = { text: this.#words.value.trim(), pictures: this.tray.pictures, editing: this.#editing };
    this.clear();
    this.#ask(question);
  }

  get #sendable() {
    return !this.#running && (this.#words.value.trim() !== "" || this.tray.pictures.length > 0);
  }

  #note(text) {
    this.#notice.textContent = text ?? "";
    this.#notice.hidden = text === null;
  }

  #refresh() {
    if (!this.#send) return;
    this.#banner.hidden = !this.#editing;
    const focused = document.activeElement === this.#stop || document.activeElement === this.#send;
    this.#stop.hidden = !this.#running;
    this.#send.hidden = this.#running;
    this.#send.disabled = !this.#sendable;
    if (focused && (this.#running ? this.#stop : this.#send) !== document.activeElement) this.focus();
    this.#words.style.setProperty("height", "auto");
    this.#words.style.setProperty("height", `${Math.min(this.#words.scrollHeight, 220)}px`);
  }
}
