// Light or dark theme: the system's, unless the user chooses one.

import { el } from "./dom.js";

const KEY = "unstuck.theme";
const NEXT_THEME = { auto: "light", light: "dark", dark: "auto" };
const SYMBOLS = { auto: "◐", light: "○", dark: "●" };

function chosen() {
  const stored = localStorage.getItem(KEY);
  return stored in NEXT_THEME ? stored : "auto";
}

export function apply() {
  document.documentElement.dataset.theme = chosen();
}

export function button() {
  const node = el("button", { type: "button", class: "theme", on: { click: () => {
    localStorage.setItem(KEY, NEXT_THEME[chosen()]);
    apply();
    label();
  } } });
  const label = () => {
    node.textContent = SYMBOLS[chosen()];
    node.setAttribute("aria-label", `Theme: ${chosen()}`);
    node.title = node.getAttribute("aria-label");
  };
  label();
  return node;
}
