/**
 * Conversations kept in this browser. Owns the database: records in one store, the bytes of pictures in another.
 * Promises that deleting a conversation deletes its pictures, that writes of one record never overtake each other, and
 * that a browser without storage, or with a full one, still works for the visit (`trouble` is told once). Nothing of it
 * ever leaves the browser.
 */

const NAME = "foveate";
const STORES = ["conversations", "pictures"];

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function openDatabase() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => {
    for (const store of STORES) request.result.createObjectStore(store, { keyPath: "id" });
  };
  return settled(request);
}

/** The store of this browser, or one in memory where the browser allows none; `trouble(sentence)` says what is not kept. */
export async function openStore(trouble) {
  try {
    return new Store(await openDatabase(), trouble);
  } catch {
    trouble("This browser keeps nothing for this page: conversations last until it is closed.");
    return new Store(null, trouble);
  }
}

class Store {
  #database;
  #trouble;
  #told = false;
  #memory = { conversations: new Map(), pictures: new Map() };

  constructor(database, trouble) {
    this.#database = database;
    this.#trouble = trouble;
  }

  /** All conversations, the one that changed last first. */
  async list() {
    const all = await this.#all("conversations");
    return all.sort((a, b) => b.updated - a.updated);
  }

  /** Write a conversation as it is now; what changes while this waits is written by the next call. */
  async save(conversation) {
    await this.#put("conversations", structuredClone(conversation));
  }

  async addPicture(picture) {
    await this.#put("pictures", picture);
  }

  /** The stored picture `{id, name, blob}`, or undefined. */
  async picture(id) {
    const held = this.#memory.pictures.get(id);
    if (held || this.#database === null) return held;
    return settled(this.#database.transaction("pictures").objectStore("pictures").get(id));
  }

  /** Delete a conversation and every picture that it alone holds. */
  async remove(conversation) {
    await this.#drop("conversations", conversation.id);
    await this.prune(picturesOf(conversation));
  }

  /** Delete those of the given pictures that no conversation holds any more. */
  async prune(ids) {
    const held = new Set((await this.#all("conversations")).flatMap(picturesOf));
    for (const id of ids) if (!held.has(id)) await this.#drop("pictures", id);
  }

  async #all(store) {
    if (this.#database === null) return [...this.#memory[store].values()];
    return settled(this.#database.transaction(store).objectStore(store).getAll());
  }

  async #put(store, record) {
    this.#memory[store].set(record.id, record);
    if (this.#database === null) return;
    try {
      await settled(this.#database.transaction(store, "readwrite").objectStore(store).put(record));
      this.#memory[store].delete(record.id);
    } catch {
      if (this.#told) return;
      this.#told = true;
      this.#trouble("This browser's storage is full or closed: what follows lasts until the page is closed.");
    }
  }

  async #drop(store, id) {
    this.#memory[store].delete(id);
    if (this.#database === null) return;
    await settled(this.#database.transaction(store, "readwrite").objectStore(store).delete(id));
  }
}

/** The ids of all pictures of a conversation. */
export function picturesOf(conversation) {
  return conversation.messages.flatMap((message) => (message.pictures ?? []).map((picture) => picture.id));
}
