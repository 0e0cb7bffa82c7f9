/**
 * Reading server-sent events from a fetch response. Owns the framing: events, comments, bytes that end in the middle of
 * a character. EventSource is not used, because it can neither POST nor send a key. Knows no API's words.
 */

/**
 * Yield `{event, data}` for each event and `{comment}` for each comment line of a body, until it ends. Leaving the loop
 * or an abort of the fetch closes the connection.
 */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let frame = newFrame();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (frame.data.length) yield { event: frame.event, data: frame.data.join("\n") };
          frame = newFrame();
        } else if (line.startsWith(":")) {
          yield { comment: line.slice(1).trim() };
        } else {
          take(frame, line);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function newFrame() {
  return { event: "message", data: [] };
}

function take(frame, line) {
  const at = line.indexOf(":");
  const name = at < 0 ? line : line.slice(0, at);
  const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
  if (name === "data") frame.data.push(value);
  else if (name === "event") frame.event = value;
}
