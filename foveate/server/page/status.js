/**
 * The server's state as it changes. Owns the one connection to `/status/events`: opened while the page is visible,
 * opened again after a break, given up where the server does not tell. Promises listeners the newest snapshot and the
 * moment it came. Knows nothing of what is drawn from it.
 */

import { Refusal, statusEvents } from "./api.js";

const AGAIN_MS = [1000, 2000, 5000, 10000];

export class StatusFeed {
  #listeners = new Set();
  #controller = null;
  #failures = 0;
  #timer = null;
  #refused = false;

  constructor() {
    /** The newest snapshot, or null. */
    this.snapshot = null;
    /** `performance.now()` of its arrival. */
    this.at_ms = 0;
    document.addEventListener("visibilitychange", () => this.#follow());
    this.#follow();
  }

  /** Call `listen(snapshot or null)` on each change, and now; null: nothing is known. */
  subscribe(listen) {
    this.#listeners.add(listen);
    listen(this.snapshot);
    return () => this.#listeners.delete(listen);
  }

  /** Seconds a request of the newest snapshot has been under way by now. */
  elapsed(request) {
    return (request.elapsed_s ?? 0) + (performance.now() - this.at_ms) / 1000;
  }

  /** Try again, for example with a key. */
  restart() {
    this.#refused = false;
    this.#controller?.abort();
    this.#controller = null;
    this.#follow();
  }

  #follow() {
    if (document.hidden || this.#refused) {
      // A hidden page keeps no connection: browsers allow few to one server.
      this.#controller?.abort();
      this.#controller = null;
    } else if (this.#controller === null) {
      clearTimeout(this.#timer);
      this.#controller = new AbortController();
      this.#read(this.#controller);
    }
  }

  async #read(controller) {
    try {
      for await (const part of statusEvents(controller.signal)) {
        this.#failures = 0;
        this.#tell({ ...this.snapshot, ...part });
      }
    } catch (error) {
      // 4xx: this server or this key does not tell, and asking again would not change that.
      this.#refused = error instanceof Refusal && error.status >= 400 && error.status < 500;
    }
    if (controller.signal.aborted) return;
    this.#controller = null;
    this.#tell(null);
    if (this.#refused) return;
    const wait = AGAIN_MS[Math.min(this.#failures++, AGAIN_MS.length - 1)];
    this.#timer = setTimeout(() => this.#follow(), wait);
  }

  #tell(snapshot) {
    this.snapshot = snapshot;
    this.at_ms = performance.now();
    for (const listen of this.#listeners) listen(snapshot);
  }
}
