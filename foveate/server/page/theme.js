/**
 * Light and dark. Owns the choice: the system's, until somebody chooses here. Promises that the choice outlives the
 * visit and that the browser's own parts (scroll bars, fields) follow.
 */

import { fill, icon } from "./dom.js";

const KEY = "foveate.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function isDark() {
  const chosen = localStorage.getItem(KEY);
  return chosen ? chosen === "dark" : system.matches;
}

function apply(node) {
  const dark = isDark();
  const theme = dark ? "dark" : "light";
  document.documentElement.dataset.theme = theme;
  fill(node, icon(dark ? "sun" : "moon"));
  const label = dark ? "Light colours" : "Dark colours";
  node.setAttribute("aria-label", label);
  node.title = label;
}

/** Make `node`, a button, switch between light and dark. */
export function startTheme(node) {
  apply(node);
  system.addEventListener("change", () => apply(node));
  node.addEventListener("click", () => {
    localStorage.setItem(KEY, isDark() ? "light" : "dark");
    apply(node);
  });
}
