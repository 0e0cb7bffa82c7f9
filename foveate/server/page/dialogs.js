/**
 * The page's dialogs: parameters, shortcuts, a picture in full, the key. Owns their nodes. Promises that each can be
 * closed with Escape and gives the focus back, which the browser's own dialogs do.
 */

import { button, fill, h, iconButton } from "./dom.js";
import { urlOf } from "./pictures.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, hint: "0 always takes the likeliest word." },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, hint: "Draws only from the likeliest words that make up this share." },
  { name: "max_tokens", label: "Longest answer", min: 1, max: 1000000, step: 1, hint: "In tokens." },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, hint: "The same seed draws the same words." },
];

const SHORTCUTS = [
  ["Enter", "send the question"],
  ["Shift + Enter", "new line"],
  ["Esc", "stop the answer"],
  ["Alt + U", "add pictures"],
  ["Shift + ← →", "move the chosen picture"],
  ["Delete", "remove the chosen picture"],
  ["Alt + N", "new conversation"],
  ["Alt + P", "parameters"],
  ["Alt + S", "what the server does"],
  ["/", "go to the question"],
  ["?", "these shortcuts"],
];

/** Show a dialog with a title and return it; it is taken off the page once it is closed. */
export function openDialog(title, children, { wide = false } = {}) {
  const close = iconButton("close", "Close", () => node.close());
  const head = h("header", {}, h("h2", { id: "dialog-title" }, title), close);
  const node = h("dialog", { class: wide ? "dialog wide" : "dialog", "aria-labelledby": "dialog-title" }, head, children);
  node.addEventListener("close", () => node.remove());
  // A click on what lies behind the dialog has the dialog itself as its target.
  node.addEventListener("click", (event) => event.target === node && node.close());
  document.body.append(node);
  node.showModal();
  return node;
}

/** Edit parameters; `keep(params)` gets them at each valid change. */
export function editParams(params, keep) {
  const now = { ...params };
  const inputs = FIELDS.map((field) => number(field, now, () => keep({ ...now })));
  const system = h("textarea", {
    id: "param-system", class: "field", rows: "4",
    on: { input: () => { now.system = system.value; keep({ ...now }); } },
  });
  system.value = now.system ?? "";
  const words = h("div", { class: "param tall" }, h("label", { for: "param-system" }, "System prompt"), system);
  const reset = button("Use the model's own", () => {
    for (const { input, name } of inputs) { input.value = ""; input.removeAttribute("aria-invalid"); now[name] = null; }
    keep({ ...now });
  });
  const note = h("p", { class: "quiet" }, "They hold for this conversation and for new ones. An empty field is left to the model.");
  openDialog("Parameters", [note, ...inputs.map(({ node }) => node), words, reset]);
}

function number({ name, label, min, max, step, hint }, now, keep) {
  const id = `param-${name}`;
  const input = h("input", {
    id, class: "field", type: "number", min, max, step: step < 1 ? "any" : step, placeholder: "model's own", inputmode: "decimal",
    "aria-describedby": `${id}-hint`,
    on: {
      input: () => {
        const valid = input.checkValidity();
        input.setAttribute("aria-invalid", `${!valid}`);
        explain.textContent = valid ? hint : `Between ${min} and ${max}${step < 1 ? "" : ", whole"}.`;
        if (!valid) return;
        now[name] = input.value === "" ? null : Number(input.value);
        keep();
      },
    },
  });
  input.value = now[name] ?? "";
  const explain = h("small", { id: `${id}-hint` }, hint);
  return { node: h("div", { class: "param" }, h("label", { for: id }, label), input, explain), input, name };
}

/** The list of shortcuts. */
export function showShortcuts() {
  const rows = SHORTCUTS.map(([keys, what]) => h("div", {}, h("dt", {}, h("kbd", {}, keys)), h("dd", {}, what)));
  openDialog("Shortcuts", h("dl", { class: "shortcuts" }, rows));
}

/** A picture in full. */
export function showPicture(picture, blob) {
  const size = picture.width ? `, ${picture.width} × ${picture.height}` : "";
  openDialog(`${picture.name}${size}`, h("img", { class: "full", src: urlOf(blob), alt: picture.name }), { wide: true });
}

/** Ask for the server's key; `take(key)` gets it. */
export function askForKey(take) {
  const input = h("input", { id: "key", class: "field", type: "password", autocomplete: "off", "aria-label": "API key" });
  const form = h(
    "form",
    { class: "key", on: { submit: (event) => { event.preventDefault(); node.close(); take(input.value.trim()); } } },
    input,
    h("button", { type: "submit", class: "button primary" }, "Use this key"),
  );
  const node = openDialog("The server asks for a key", [h("p", { class: "quiet" }, "It is kept until this tab is closed."), form]);
  fill(node.querySelector("header"), h("h2", { id: "dialog-title" }, "The server asks for a key"));
  input.focus();
}
