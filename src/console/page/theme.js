// Light or dark theme: the system's, unless the user chooses one.

import { el } from "./dom.js";

const KEY = "unstuck.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const SHOWN = { auto: "◐", light: "○", dark: "●" };

function chosen() {
  const said = localStorage.getItem(KEY);
  return said in NEXT ? said : "auto";
}

export function apply() {
  document.documentElement.dataset.theme = chosen();
}

export function button() {
  const node = el("button", { type: "button", class: "theme", on: { click: () => {
    localStorage.setItem(KEY, NEXT[chosen()]);
    apply();
    label();
  } } });
  const label = () => {
    node.textContent = SHOWN[chosen()];
    node.setAttribute("aria-label", `Theme: ${chosen()}`);
    node.title = node.getAttribute("aria-label");
  };
  label();
  return node;
}
