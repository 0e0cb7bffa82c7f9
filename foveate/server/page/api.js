/**
 * The server as this page sees it: four public routes. Owns requests, the key, and what a refusal means.
 * Promises that every failure is a `Refusal` with a sentence fit to be read, and that an abort is not a failure.
 * Refuses to know conversations and pages.
 */

import { events } from "./sse.js";

const KEY = "foveate.key";

/** An answer that is not one: `status` (0: no connection), the reason, and seconds to wait if the server said so. */
export class Refusal extends Error {
  constructor(status, message, { param = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

/** Kept for this tab only: a key on disk would outlive the visit. */
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  throw await refusalOf(response);
}

async function refusalOf(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    // Not JSON: a proxy answered. The status has to do.
  }
  const retryAfter = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  const message = typeof told.message === "string" ? told.message : `The server answered ${response.status}.`;
  return new Refusal(response.status, message, {
    param: typeof told.param === "string" ? told.param : null,
    retryAfter: Number.isFinite(retryAfter) ? retryAfter : null,
  });
}

/** The served model: its name, context length, and whether it sees pictures. */
export async function servedModel() {
  const { data } = await (await send("/v1/models")).json();
  const card = data?.[0] ?? {};
  return {
    id: card.id ?? "model",
    maxLen: card.max_model_len ?? null,
    vision: (card.architecture?.input_modalities ?? ["text", "image"]).includes("image"),
  };
}

/** The bundled examples as `{file, question}`; none where the server offers none. */
export async function examples() {
  try {
    const text = await (await send("/examples/pictures.jsonl")).text();
    return text
      .split("\n")
      .filter((line) => line.trim())
      .map((line) => JSON.parse(line));
  } catch {
    return [];
  }
}

/** One example picture as a blob. */
export async function examplePicture(file) {
  return (await send(`/examples/${encodeURIComponent(file)}`)).blob();
}

/**
 * Ask for a streamed answer. Yields `{encoded, of}` as pictures land, `{text}`, `{reasoning}`, `{finish}`, `{timings}`,
 * `{usage}` and `{id}` as they come. Throws a Refusal when the answer is refused or fails on its way.
 */
export async function* chat(body, signal) {
  const response = await send("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  let complete = false;
  try {
    for await (const { comment, data } of events(response)) {
      if (comment !== undefined) yield* progress(comment);
      else if (data === "[DONE]") complete = true;
      else yield* parts(JSON.parse(data));
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Refusal) throw error;
    throw new Refusal(0, "The connection was lost in the middle of the answer.");
  }
  if (!complete) throw new Refusal(0, "The connection was lost in the middle of the answer.");
}

function* progress(comment) {
  const found = /^encoded image (\d+) of (\d+)/.exec(comment);
  if (found) yield { encoded: Number(found[1]), of: Number(found[2]) };
}

function* parts(chunk) {
  if (chunk.error) throw new Refusal(500, chunk.error.message ?? "The answer failed.");
  if (chunk.id) yield { id: chunk.id };
  const choice = chunk.choices?.[0];
  if (choice?.delta?.reasoning_content) yield { reasoning: choice.delta.reasoning_content };
  if (choice?.delta?.content) yield { text: choice.delta.content };
  if (choice?.finish_reason) yield { finish: choice.finish_reason };
  if (chunk.timings) yield { timings: chunk.timings };
  if (chunk.usage) yield { usage: chunk.usage };
}

/** The server's state, each time it changes. Throws a Refusal when the server does not tell it. */
export async function* statusEvents(signal) {
  const response = await send("/status/events", { signal });
  for await (const { data } of events(response)) {
    if (data) yield JSON.parse(data);
  }
}
