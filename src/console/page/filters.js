// Controls whose values are kept in the URL, so that a view can be shared.

import { el } from "./dom.js";
import * as format from "./format.js";

/** A drop-down list for one parameter of the URL. */
export function choice(label, name, options, params, change) {
  const select = el("select", { name, "aria-label": label, on: { change: () => change(name, select.value) } });
  const setOptions = (options) => {
    select.replaceChildren(...options.map(([value, text]) => el("option", { value, selected: (params[name] ?? "") === value }, text)));
  };
  setOptions(options);
  select.set = (params) => {
    const value = params[name] ?? "";
    // A shared URL may name a value that no longer exists.
    if (![...select.options].some((option) => option.value === value)) select.append(el("option", { value }, value));
    select.value = value;
  };
  select.set(params);
  return select;
}

/** A text field for one parameter, applied after a pause in typing. */
export function search(label, name, params, change, type = "search") {
  let timer = 0;
  const apply = () => { clearTimeout(timer); change(name, input.value.trim()); };
  const input = el("input", { type, name, "aria-label": label, placeholder: label, value: params[name] ?? "", autocomplete: "off", spellcheck: "false",
    on: { input: () => { clearTimeout(timer); timer = setTimeout(apply, 200); }, change: apply } });
  input.set = (params) => { if (document.activeElement !== input) input.value = params[name] ?? ""; };
  return input;
}

export function minAction(params, change) {
  const options = [["", "any action"], ...format.ACTIONS.map((name) => [name, name === "terminate" ? name : `${name} and stronger`])];
  return choice("Minimum action", "min_action", options, params, change);
}

export function detector(params, change, names, others = []) {
  return choice("Detector", "detector", [["", "any detector"], ...others, ...names.map((name) => [name, name])], params, change);
}
