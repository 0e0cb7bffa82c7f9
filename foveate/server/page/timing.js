/**
 * What happened when, in one shape for every source: the `timings` of a finished answer, a request in the server's
 * status, or what this browser saw by itself. Owns that shape and the sums that are read from it. Draws nothing.
 *
 * A view is `{images, start_s, first_s, end_s, running, facts, source}`; an image `{rows, fetch, decode, encode,
 * prefill}`, each a window `[start_s, end_s]` or null. The end of a window that is still open is null. Seconds since the
 * request arrived at the engine: what was fetched for it lies before.
 */

/** In the order in which an image passes them. */
export const STAGES = ["fetch", "decode", "encode", "prefill"];
// Pictures that came with the request are there at once; that is no lane.
const SHORT_FETCH_S = 0.02;

/** The view of a finished answer. */
export function fromTimings(timings, tokens = null) {
  const first = number(timings.first_token_s) ?? 0;
  const images = list(timings.images).map(windowsOf);
  return {
    images,
    start_s: startOf(images),
    first_s: first,
    end_s: first + (number(timings.generation_s) ?? 0),
    running: false,
    facts: facts(timings, tokens),
    source: "final",
  };
}

/** The view of a request under way as the server tells it, `elapsed_s` after it arrived. */
export function fromStatus(request, elapsed_s) {
  const timings = request.timings ?? {};
  const images = supposed(list(request.images).map(windowsOf));
  return {
    images,
    start_s: startOf(images),
    first_s: number(timings.first_token_s) || null,
    end_s: elapsed_s,
    running: true,
    facts: running(request, timings, elapsed_s),
    source: "live",
  };
}

/** The view of what the browser itself saw: pictures that were reported as encoded, and the first words. */
export function fromBrowser(seen, images, elapsed_s) {
  return {
    images: Array.from({ length: images }, (_, i) => {
      const end = seen.encoded[i] ?? null;
      const next = seen.encoded.length === i;
      const start = i === 0 ? 0 : (seen.encoded[i - 1] ?? null);
      const encode = end !== null || next ? [start, end] : null;
      return { rows: null, fetch: null, decode: null, encode, prefill: null };
    }),
    start_s: 0,
    first_s: seen.first_s,
    end_s: elapsed_s,
    running: true,
    facts: [],
    source: "browser",
  };
}

/** Stretches in which one image was encoded while another was prefilled: what the overlap bought, to be seen. */
export function together(view) {
  const encodes = closed(view, "encode");
  const prefills = closed(view, "prefill");
  const out = [];
  for (const [a, b] of encodes) {
    for (const [c, d] of prefills) {
      const start = Math.max(a, c);
      const end = Math.min(b, d);
      if (end > start) out.push([start, end]);
    }
  }
  return out.sort((x, y) => x[0] - y[0]);
}

function closed(view, stage) {
  return view.images
    .map((image) => image[stage])
    .filter(Boolean)
    .map(([start, end]) => [start, end ?? view.end_s]);
}

/** Seconds in few characters: "85 ms", "1.63 s", "2 min 5 s". */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${Math.max(0, Math.round(value * 1000))} ms`;
  if (value < 60) return `${value.toFixed(value < 9.995 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

function number(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function list(value) {
  return Array.isArray(value) ? value : [];
}

function startOf(images) {
  return Math.min(0, ...images.filter(({ fetch }) => fetch).map(({ fetch }) => fetch[0]));
}

/**
 * An encoder of its own is told about from the start of each encode; one that takes turns with the model, once it is
 * over. Images are encoded one by one, so then the first that is not is taken to be under way since it could begin;
 * `supposed` marks the window as no more than that.
 */
function supposed(images) {
  if (images.some(({ encode }) => encode !== null && encode[1] === null)) return images;
  const index = images.findIndex(({ encode }) => encode === null);
  const image = images[index];
  if (!image || image.prefill || !image.decode?.[1]) return images;
  const ends = images.slice(0, index).map(({ encode }) => encode[1]);
  const start = Math.max(image.decode[1], ...ends.filter((end) => end !== null));
  return images.with(index, { ...image, encode: Object.assign([start, null], { supposed: true }) });
}

function windowsOf(image) {
  const out = { rows: number(image.rows) };
  for (const stage of STAGES) {
    const start = number(image[`${stage}_start_s`]);
    out[stage] = start === null ? null : [start, number(image[`${stage}_end_s`])];
  }
  if (out.fetch && out.fetch[1] !== null && out.fetch[1] - out.fetch[0] < SHORT_FETCH_S) out.fetch = null;
  return out;
}

function facts(timings, tokens) {
  const out = [{ name: "first token", value: seconds(timings.first_token_s) }];
  out.push(...hidden(timings));
  out.push(...speed(number(timings.tokens_per_second), tokens));
  out.push(...drafts(timings));
  if ((number(timings.queued_s) ?? 0) >= 0.01) out.push({ name: "queued", value: seconds(timings.queued_s) });
  if (timings.preemptions) out.push({ name: "preempted", value: `${timings.preemptions}×` });
  return out;
}

/** How much of the encoding the model did not wait for, and how much it did. */
function hidden(timings) {
  const encode = number(timings.encode_s) ?? 0;
  if (encode <= 0) return [];
  const value = number(timings.hidden_s) ?? 0;
  const share = `${Math.round((100 * value) / encode)} % of ${seconds(encode)} encoding`;
  const waited = { name: "waited", value: seconds(number(timings.waited_s)) };
  return [{ name: "hidden", value: seconds(value), more: share, main: true }, waited];
}

function speed(rate, tokens) {
  if (rate === null) return [];
  return [{ name: "speed", value: `${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tok/s`, more: counted(tokens) }];
}

function counted(tokens) {
  return tokens === null ? null : `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
}

/** How many guessed tokens were right, where the server guesses. */
function drafts(timings) {
  const drafted = number(timings.drafted) ?? 0;
  if (drafted === 0) return [];
  const right = number(timings.accepted) ?? list(timings.accepted).reduce((sum, count) => sum + count, 0);
  const steps = number(timings.decode_steps) ?? 0;
  const more = steps > 0 ? `${(1 + right / steps).toFixed(1)} tokens a step` : null;
  return [{ name: "drafts accepted", value: `${Math.round((100 * right) / drafted)} %`, more }];
}

function running(request, timings, elapsed_s) {
  const out = [];
  const images = list(request.images);
  const done = images.filter((image) => number(image.encode_end_s) !== null).length;
  if (images.length > 0) out.push({ name: "encoded", value: `${done} of ${images.length}` });
  const first = number(timings.first_token_s);
  // While pictures are still awaited, what was hidden is not settled: the wait may yet take it back.
  if (first && images.length > 0) out.push(...hidden(timings));
  const tokens = number(request.output_tokens) ?? 0;
  if (first && tokens > 1 && elapsed_s > first) out.push(...speed((tokens - 1) / (elapsed_s - first), tokens));
  return [...out, ...drafts(timings)];
}
