/**
 * The conversations of this browser and what runs in them. Owns their records and every change to them: asking,
 * stopping, asking again, editing, renaming, deleting. Promises that what is gone from the screen is gone from the
 * browser, and that a reload finds what was asked and, up to a second or two, what was answered. Tells one listener of each change and knows no page.
 */

import { newId } from "./dom.js";
import { MAX_IMAGES } from "./pictures.js";
import { Run } from "./run.js";
import { picturesOf } from "./store.js";

const SAVE_MS = 1500;
const OPEN = "foveate.open";
export const DEFAULTS = { temperature: null, top_p: null, max_tokens: null, seed: null, system: "" };

export class Session {
  #store;
  #feed;
  #changed;
  #runs = new Map();
  #lastSave = 0;

  /** `changed(what, message)`: "list", "conversation", or "message" with the message that changed. */
  constructor({ store, feed, model, changed }) {
    this.#store = store;
    this.#feed = feed;
    this.#changed = changed;
    this.model = model;
    this.conversations = [];
    this.current = blank(DEFAULTS);
  }

  /** Read what an earlier visit left and open what it had open. */
  async load() {
    this.conversations = await this.#store.list();
    for (const conversation of this.conversations) {
      // An answer that was under way when the page went is not any more.
      for (const message of conversation.messages) if (message.state === "running") message.state = "stopped";
    }
    const open = localStorage.getItem(OPEN);
    this.current = this.conversations.find(({ id }) => id === open) ?? blank(this.conversations[0]?.params ?? DEFAULTS);
    this.#changed("list");
    this.#changed("conversation");
  }

  /** The run that fills a message, or null. */
  runOf(message) {
    const run = [...this.#runs.values()].find((run) => run.message === message);
    return run ?? null;
  }

  get running() {
    return this.#runs.has(this.current.id);
  }

  /** How many more pictures a message of the open conversation may have; `editing` leaves out its last question. */
  roomForPictures(editing = false) {
    const messages = editing ? this.current.messages.slice(0, this.#lastQuestion()) : this.current.messages;
    return MAX_IMAGES - picturesOf({ messages }).length;
  }

  open(conversation) {
    this.current = conversation;
    localStorage.setItem(OPEN, conversation.id);
    this.#changed("list");
    this.#changed("conversation");
  }

  startNew() {
    this.open(blank(this.current.params));
  }

  async rename(conversation, title) {
    conversation.title = title.trim() || conversation.title;
    await this.#save(conversation);
    this.#changed("list");
  }

  async remove(conversation) {
    const run = this.#runs.get(conversation.id);
    run?.stop();
    await run?.finished;
    await this.#store.remove(conversation);
    this.conversations = this.conversations.filter((other) => other !== conversation);
    if (this.current === conversation) this.startNew();
    else this.#changed("list");
  }

  async setParams(params) {
    this.current.params = params;
    if (this.conversations.includes(this.current)) await this.#save(this.current);
  }

  /** Ask in the open conversation; `pictures` are records with their blobs. `editing` replaces the last question. */
  async ask(text, pictures, editing = false) {
    const conversation = this.current;
    const dropped = editing ? conversation.messages.splice(this.#lastQuestion()) : [];
    const kept = pictures.map(({ id, name, width, height }) => ({ id, name, width, height }));
    for (const picture of pictures) await this.#store.addPicture(picture);
    conversation.messages.push({ id: newId(), role: "user", text, pictures: kept });
    if (!this.conversations.includes(conversation)) {
      conversation.title = titleOf(text, pictures.length);
      this.conversations.unshift(conversation);
      localStorage.setItem(OPEN, conversation.id);
    }
    this.#answer(conversation);
    await this.#save(conversation);
    await this.#store.prune(picturesOf({ messages: dropped }));
  }

  /** Answer the last question once more, in place of the answer it has. */
  regenerate() {
    const conversation = this.current;
    if (conversation.messages.at(-1)?.role === "assistant") conversation.messages.pop();
    this.#answer(conversation);
  }

  /** The last question with its pictures' bytes, to be edited; null when there is none. */
  async lastQuestion() {
    const message = this.current.messages[this.#lastQuestion()];
    if (!message) return null;
    const found = await Promise.all(message.pictures.map(({ id }) => this.#store.picture(id)));
    return { text: message.text, pictures: found.filter(Boolean) };
  }

  /** The bytes of a picture, or undefined. */
  async pictureBlob(id) {
    return (await this.#store.picture(id))?.blob;
  }

  stop() {
    this.#runs.get(this.current.id)?.stop();
  }

  #lastQuestion() {
    return this.current.messages.findLastIndex((message) => message.role === "user");
  }

  #answer(conversation) {
    const message = { id: newId(), role: "assistant", text: "", reasoning: "", state: "running", timings: null };
    conversation.messages.push(message);
    const changed = () => {
      this.#changed("message", message);
      if (message.state === "running") this.#saveSometimes(conversation);
    };
    const run = new Run({ conversation, message, store: this.#store, feed: this.#feed, model: this.model, changed });
    this.#runs.set(conversation.id, run);
    this.#changed("list");
    this.#changed("conversation");
    run.finished.then(async () => {
      this.#runs.delete(conversation.id);
      this.#changed("message", message);
      this.#changed("list");
      if (this.conversations.includes(conversation)) await this.#save(conversation);
    });
  }

  #saveSometimes(conversation) {
    if (performance.now() - this.#lastSave < SAVE_MS) return;
    this.#lastSave = performance.now();
    this.#save(conversation);
  }

  async #save(conversation) {
    conversation.updated = Date.now();
    await this.#store.save(conversation);
  }
}

function blank(params) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, params: { ...DEFAULTS, ...params }, messages: [] };
}

function titleOf(text, pictures) {
  const line = text.trim().split("\n")[0];
  if (line) return line.length > 60 ? `${line.slice(0, 59)}…` : line;
  return pictures === 1 ? "A picture" : `${pictures} pictures`;
}
