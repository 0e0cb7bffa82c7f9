/**
 * One answer under way. Owns the request made of a conversation, filling the answer's message from the stream, and
 * finding the same request in the server's status, so that its timeline can be shown as it happens. Promises that the
 * message always says how it ended: done, stopped or failed. Knows no page.
 */

import { chat, Refusal } from "./api.js";
import { dataUrl } from "./pictures.js";
import { fromBrowser, fromStatus, fromTimings } from "./timing.js";

const BUSY_MS = 12;
const PARAMETERS = ["temperature", "top_p", "max_tokens", "seed"];

export class Run {
  #feed;
  #controller = new AbortController();
  #started_ms = performance.now();
  #seen = { encoded: [], first_s: null };
  #claimed = null;
  #before;
  #unsubscribe;

  /** Begin answering into `message`, the last of `conversation`; `changed()` is called whenever the message changed. */
  constructor({ conversation, message, store, feed, model, changed }) {
    this.message = message;
    this.images = 0;
    this.#feed = feed;
    this.#before = new Set((feed.snapshot?.requests ?? []).map((request) => request.id));
    this.#unsubscribe = feed.subscribe((snapshot) => this.#claim(snapshot));
    this.finished = this.#answer(conversation, store, model, changed);
  }

  /** End it; the server gives the slot back as soon as it sees the connection closed. */
  stop() {
    this.#controller.abort();
  }

  /** What is known about its times by now, as a view for a timeline. */
  view() {
    if (this.message.timings) return fromTimings(this.message.timings, this.message.tokens);
    const elapsed_s = (performance.now() - this.#started_ms) / 1000;
    if (this.#claimed === null) return fromBrowser(this.#seen, this.images, elapsed_s);
    const view = fromStatus(this.#claimed, this.#feed.elapsed(this.#claimed));
    // The first words are seen here before the next snapshot tells of them.
    return { ...view, first_s: view.first_s ?? this.#seen.first_s };
  }

  async #answer(conversation, store, model, changed) {
    const message = this.message;
    try {
      const body = await requestOf(conversation, store, model);
      this.images = body.messages.flatMap((m) => m.content).filter((part) => part.type === "image_url").length;
      message.images = this.images;
      let drawn_ms = performance.now();
      for await (const part of chat(body, this.#controller.signal)) {
        this.#take(part);
        changed();
        // What has arrived already is read without a pause; a fast server must not keep the page from being used.
        if (performance.now() - drawn_ms > BUSY_MS) {
          await new Promise((resolve) => setTimeout(resolve));
          drawn_ms = performance.now();
        }
      }
      message.state = "done";
    } catch (error) {
      // A stopped answer keeps the times that were seen; the server's own sums come with a whole one only.
      const seen = { ...this.view(), running: false };
      fail(message, error);
      if (message.state === "stopped") message.seen = seen;
    }
    this.#unsubscribe();
    changed();
  }

  #take(part) {
    const message = this.message;
    const now_s = (performance.now() - this.#started_ms) / 1000;
    if (part.text ?? part.reasoning) this.#seen.first_s ??= now_s;
    if (part.text) message.text += part.text;
    if (part.reasoning) message.reasoning += part.reasoning;
    if (part.encoded) this.#seen.encoded[part.encoded - 1] ??= now_s;
    if (part.finish) message.finish = part.finish;
    if (part.timings) message.timings = part.timings;
    if (part.usage) message.tokens = part.usage.completion_tokens ?? null;
    if (part.id) message.id_of_answer = part.id;
  }

  /** An answer's id is the request's with the API's name before it. */
  #answers(id) {
    return Boolean(id) && (this.message.id_of_answer ?? "").endsWith(id);
  }

  /** The request of a snapshot that is this one: by its id, or else the new one that fits best. */
  #claim(snapshot) {
    const requests = Array.isArray(snapshot?.requests) ? snapshot.requests : [];
    const known = requests.find(({ id }) => id === this.#claimed?.id || this.#answers(id));
    if (known) {
      this.#claimed = known;
    } else if (this.#claimed === null) {
      const elapsed_s = (performance.now() - this.#started_ms) / 1000;
      const off = (request) => Math.abs((request.elapsed_s ?? 0) - elapsed_s);
      const fits = (request) => !this.#before.has(request.id) && [0, this.images].includes(request.images?.length ?? 0);
      this.#claimed = requests.filter(fits).sort((a, b) => off(a) - off(b))[0] ?? null;
    }
  }
}

function fail(message, error) {
  if (error.name === "AbortError") {
    message.state = "stopped";
    return;
  }
  message.state = "failed";
  message.error =
    error instanceof Refusal
      ? { status: error.status, message: error.message, param: error.param, retryAfter: error.retryAfter }
      : { status: 0, message: `The page failed: ${error.message}`, param: null, retryAfter: null };
}

/** The body of the request; every message but the one to be filled, pictures in their order before the words. */
async function requestOf(conversation, store, model) {
  const { system, ...params } = conversation.params;
  const messages = [];
  if (system?.trim()) messages.push({ role: "system", content: [{ type: "text", text: system }] });
  for (const message of conversation.messages.slice(0, -1)) {
    if (message.role === "user") messages.push({ role: "user", content: await contentOf(message, store) });
    else if (message.text) messages.push({ role: "assistant", content: [{ type: "text", text: message.text }] });
  }
  const body = { model: model.id, messages, stream: true, stream_options: { include_usage: true } };
  for (const name of PARAMETERS) if (Number.isFinite(params[name])) body[name] = params[name];
  return body;
}

async function contentOf(message, store) {
  const parts = [];
  for (const { id } of message.pictures) {
    const found = await store.picture(id);
    if (!found) throw new Refusal(0, "A picture of this conversation is no longer in this browser.");
    parts.push({ type: "image_url", image_url: { url: await dataUrl(found.blob) } });
  }
  if (message.text || parts.length === 0) parts.push({ type: "text", text: message.text });
  return parts;
}
