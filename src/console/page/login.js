// Who asks? The token stays in this tab.

import { el } from "./dom.js";

export function login(why, enter) {
  const field = el("input", { id: "token", type: "password", autocomplete: "off", required: true });
  return el("form", { class: "login", on: { submit: (event) => { event.preventDefault(); if (field.value.trim()) enter(field.value.trim()); } } },
    el("h1", null, "Log in"),
    el("p", { class: "quiet" }, "This service wants to know who asks. The token is kept until the tab is closed, and sent nowhere else."),
    why ? el("p", { class: "refusal", role: "alert" }, why) : null,
    el("p", { class: "field" }, el("label", { for: "token" }, "Token"), field),
    el("footer", null, el("button", { type: "submit", class: "main" }, "Log in")));
}
