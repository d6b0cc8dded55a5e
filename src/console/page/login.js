// The sign-in form. The token is kept in this tab.

import { el } from "./dom.js";

export function login(errorText, onToken) {
  const field = el("input", { id: "token", type: "password", autocomplete: "off", required: true });
  return el("form", { class: "login", on: { submit: (event) => { event.preventDefault(); if (field.value.trim()) onToken(field.value.trim()); } } },
    el("h1", null, "Sign in"),
    el("p", { class: "muted" }, "Sign in with an API token. It is kept until the tab is closed and sent only to this service."),
    errorText ? el("p", { class: "form-error", role: "alert" }, errorText) : null,
    el("p", { class: "field" }, el("label", { for: "token" }, "Token"), field),
    el("footer", null, el("button", { type: "submit", class: "main" }, "Sign in")));
}
