/**
 * Building nodes. Owns the one way in which this page makes elements: names, properties and text, never markup.
 * A string can only become a text node or an attribute, so nothing that a model or a person wrote is ever parsed as
 * HTML. Knows nothing about what is built with it.
 */

const SVG = "http://www.w3.org/2000/svg";

/** Paths of the icons, in a 20 by 20 box, drawn as lines. */
const ICONS = {
  plus: "M10 4v12M4 10h12",
  picture: "M3.5 4.5h13v11h-13zM3.5 13l4-4 3.5 3.5 2-2 3.5 3.5M13 7.5h.01",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  sliders: "M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4",
  sun: "M10 6.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7M10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1",
  moon: "M16 11.7A6.5 6.5 0 1 1 8.3 4a5.2 5.2 0 0 0 7.7 7.7z",
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  copy: "M7 7h9v9H7zM4 13V4h9",
  again: "M15.5 7A6 6 0 1 0 16 11.5M16 3.5V7h-3.5",
  edit: "M4 16l.8-3.4L13 4.4l2.6 2.6-8.2 8.2z",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6",
  close: "M5 5l10 10M15 5L5 15",
  help: "M7.5 7.5a2.5 2.5 0 1 1 3.6 2.2c-.7.4-1.1.9-1.1 1.8M10 14.5h.01M10 2.5a7.5 7.5 0 1 0 0 15 7.5 7.5 0 0 0 0-15",
  check: "M4 10.5l4 4 8-9",
  lanes: "M3 5h6M7 10h7M11 15h6",
};

/**
 * An element with properties and children. `on` holds listeners, `data` the dataset, `style` custom properties and
 * styles; everything else is an attribute (true: present, false or null: absent). Children: nodes, strings, or null.
 */
export function h(name, props = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (key === "on") for (const [event, listen] of Object.entries(value)) node.addEventListener(event, listen);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key === "style") for (const [name, text] of Object.entries(value)) node.style.setProperty(name, text);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** One of the icons; hidden from screen readers, since a button's name is in words. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true" })) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon; its name is read out and shown as a tooltip. */
export function iconButton(name, label, onClick, props = {}) {
  return h(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, ...props, on: { click: onClick } },
    icon(name),
  );
}

/** A button with words. */
export function button(label, onClick, props = {}) {
  return h("button", { type: "button", class: "button", ...props, on: { click: onClick } }, label);
}

/** Put exactly these children into a node. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A random name for a record. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Copy text; falls back to a selection where the clipboard is closed to pages without TLS. Resolves to success. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "off-screen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
